"""Switch Transformers: T5 whose every other block has experts, of which a token takes one (arXiv 2101.03961)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields, moe_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import EncoderDecoderFamily
from moeinf.models.layers.attention_config import Heads, NormConfig, Shapes
from moeinf.models.layers.decoder import head_of
from moeinf.models.layers.encoder_decoder import (
    AnswerDecoder,
    Attention,
    DecoderLayer,
    Encoder,
    EncoderDecoder,
    EncoderLayer,
    FeedForward,
    Norm,
    nth_of_its_expert,
)
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.moe_plan import PlainExperts, Seq2seqSizes, block_workspace, plain_experts_plan, seq2seq_info
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.types import (
    Activation,
    DType,
    EncoderInput,
    IntArray,
    JsonObject,
    ModelInfo,
    MoeShape,
    Profiler,
    TensorPlan,
    Workspace,
)

EMBEDDING, HEAD = "shared.weight", "lm_head.weight"
ATTENTIONS = {"encoder": ("SelfAttention",), "decoder": ("SelfAttention", "EncDecAttention")}  # of a layer
TRAINED_TOKENS = 512  # of a source (section 2.1); relative positions set no limit of their own


@dataclass(frozen=True, slots=True)
class Distances:
    """By which scores are biased."""

    num_buckets: int
    most: int  # those beyond share a bucket


@dataclass(frozen=True, slots=True)
class Routing:
    capacity: int  # tokens of a source that an expert takes
    biased: bool


@dataclass(frozen=True, slots=True)
class Config:
    heads: Heads
    moe: MoeShape
    sparse: Mapping[str, tuple[bool, ...]]  # of each layer of the encoder and of the decoder: whether it has experts
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    distances: Distances
    norm_eps: float
    routing: Routing
    activation: Activation
    tied: bool  # one matrix embeds the source and the answer, and makes logits, unless a checkpoint has others there

    @staticmethod
    def parse(config: JsonObject) -> Config:
        f = Fields(config)
        activation = activation_of(f, "dense_act_fn", activation_of(f, "feed_forward_proj", "relu"))
        f.fixed(is_gated_act=False, router_type="tokens_masked", router_dtype="float32", num_selected_experts=1)
        f.only("quantization_config", None)
        f.present("num_decoder_layers")
        num_layers = f.count_of("num_layers", "num_hidden_layers", maximum=MOST_LAYERS)
        stacks = dict[str, tuple[bool, ...]]()
        num_decoder_layers = f.count("num_decoder_layers", num_layers, maximum=MOST_LAYERS)
        for name, layers in (("encoder", num_layers), ("decoder", num_decoder_layers)):
            step = f.count(f"{name}_sparse_step", layers // f.count(f"num_sparse_{name}_layers", 3), minimum=0)
            stacks[name] = tuple(step > 0 and (step == 1 or i % step == 1) for i in range(layers))
        if not any(map(any, stacks.values())):
            raise CheckpointError(
                "config.json: num_sparse_encoder_layers and num_sparse_decoder_layers leave no layer with experts"
            )
        return Config(
            heads=Heads(f.count_of("num_heads", "num_attention_heads"), f.count("d_kv"), scale=1.0, biased=False),
            moe=moe_shape(sum(map(sum, stacks.values())), f.count("num_experts"), 1),
            sparse=stacks,
            hidden_size=f.count_of("d_model", "hidden_size"),
            intermediate_size=f.count("d_ff"),
            vocab_size=f.count("vocab_size"),
            context_length=f.count("n_positions", TRAINED_TOKENS),
            distances=Distances(
                f.count("relative_attention_num_buckets", 32, minimum=4),
                f.count("relative_attention_max_distance", 128),
            ),
            norm_eps=f.number("layer_norm_epsilon", 1e-6, zero=True),
            routing=Routing(f.count("expert_capacity", 64), f.flag("router_bias", False)),
            activation=activation,
            tied=f.get("tie_word_embeddings") is None or f.flag("tie_word_embeddings", True),
        )

    @property
    def head(self) -> str:
        return EMBEDDING if self.tied else HEAD

    def layers(self) -> list[tuple[str, str, bool]]:
        """(stack, prefix, whether it has experts) of every layer, the encoder's first."""
        return [
            (stack, f"{stack}.block.{i}.layer.", sparse)
            for stack, layers in self.sparse.items()
            for i, sparse in enumerate(layers)
        ]


class Router:
    """The likeliest expert of each token and its probability, computed in float32 (section 2.4).

    Where an expert has more tokens of a source than its capacity, the later ones are given nothing by it, and pass the
    layer unchanged (section 2.2). transformers counts within the pass: an answer, decoded token by token, never
    overflows.
    """

    def __init__(self, weights: Weights, c: Config, prefix: str, norm: Norm, capacity: int | None) -> None:
        self._weights, self._capacity, self._num_experts = weights, capacity, c.moe.num_experts
        self._norm = norm
        self._weight = weights.vector(f"{prefix}classifier.weight").reshape(c.moe.num_experts, c.hidden_size)
        self._bias = weights.vector(f"{prefix}classifier.bias") if c.routing.biased else np.float32(0)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._weights.math, self._norm(x)
        probabilities = math.softmax(hidden @ self._weight.T + self._bias)
        ids = math.top_k(probabilities, 1)
        weights = math.take(probabilities, ids)
        if self._capacity is not None:
            weights = weights * (nth_of_its_expert(math, ids, self._num_experts) <= self._capacity)
        return hidden, self._weights.routing(ids, weights)


class RelativeBias:
    """T5's bias of attention scores, by the distance of the tokens: exact when near, in logarithmic buckets when far.

    arXiv 1910.10683, section 2.1; the buckets are those of mesh_tensorflow's transformer_layers.py.
    """

    def __init__(self, weights: Weights, c: Config, stack: str) -> None:
        self._table = weights.vector(self.name(stack)).reshape(c.distances.num_buckets, c.heads.num_heads).T
        self._of_host = weights.math.of_host
        self._two_sided = stack == "encoder"
        self._num_buckets, self._max_distance = c.distances.num_buckets, c.distances.most

    @staticmethod
    def name(stack: str) -> str:
        """The tensor of a stack's bias."""
        return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    def __call__(self, ahead: IntArray) -> Array:
        """ahead [...]: place of the key less place of the query -> [heads, ...]"""
        bucket: Any = self._of_host(self._bucket(ahead))  # numpy types an index otherwise than numbers
        return self._table[:, bucket]

    def _bucket(self, ahead: IntArray) -> IntArray:
        num, offset = self._num_buckets, np.zeros_like(ahead)
        if self._two_sided:
            num //= 2
            offset, distance = (ahead > 0) * num, np.abs(ahead)
        else:
            distance = np.maximum(-ahead, 0)
        exact = num // 2
        far = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / log(self._max_distance / exact)
        far = np.minimum(exact + (far * (num - exact)).astype(np.int64), num - 1)
        bucket: IntArray = offset + np.where(distance < exact, distance, far)
        return bucket


class Family(EncoderDecoderFamily):
    name = "switch_transformers"

    def __init__(self, config: JsonObject) -> None:
        self._config = c = Config.parse(config)
        f = Fields(config)
        self.encoder_input = EncoderInput(
            f.count("decoder_start_token_id", 0, minimum=0),
            f.count("eos_token_id", 1, minimum=0),
            sum(c.sparse["encoder"]),
        )

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> EncoderDecoder:
        c, weights, moe_layer = self._config, layers.weights, 0
        encoder, decoder = list[EncoderLayer](), list[DecoderLayer]()

        def norm(name: str) -> Norm:
            return weights.norm(NormConfig(f"{name}layer_norm.weight", c.norm_eps))

        def attention(prefix: str, at: int, name: str) -> Attention:
            return Attention(layers, c.heads, f"{prefix}{at}.{name}.", norm(f"{prefix}{at}."))

        for stack, prefix, sparse in c.layers():
            at = 1 if stack == "encoder" else 2
            mlp, mlp_norm = f"{prefix}{at}.mlp.", norm(f"{prefix}{at}.")
            if sparse:
                capacity = c.routing.capacity if stack == "encoder" else None
                router = Router(weights, c, f"{mlp}router.", mlp_norm, capacity)
                block: Block = MoeBlock(moe_layer, router, experts, profiler)
                moe_layer += 1
            else:
                block = FeedForward(weights, mlp, ("wi", "wo"), False, mlp_norm, c.activation)
            own = attention(prefix, 0, "SelfAttention")
            if stack == "encoder":
                encoder.append(EncoderLayer(own, block))
            else:
                decoder.append(DecoderLayer(own, attention(prefix, 1, "EncDecAttention"), block))

        def embed_by(name: str) -> Callable[[Sequence[int], IntArray], Hidden]:
            embedding = layers.embedding(name)
            return lambda token_ids, positions: embedding(token_ids)

        last_norm = weights.norm(NormConfig("decoder.final_layer_norm.weight", c.norm_eps))
        scale = c.hidden_size**-0.5 if c.tied else 1.0  # as of every T5 whose head is the embedding
        head = head_of(weights, HEAD if HEAD in weights else EMBEDDING, scale)
        stacks = [f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
        embed_source, embed = (embed_by(name if name in weights else EMBEDDING) for name in stacks)
        return EncoderDecoder(
            layers,
            experts,
            profiler,
            Encoder(embed_source, encoder, norm("encoder.final_"), RelativeBias(weights, c, "encoder")),
            AnswerDecoder(embed, decoder, lambda x: head(last_norm(x)), RelativeBias(weights, c, "decoder")),
        )

    def _attention_matrices(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for stack, prefix, _ in c.layers():
            for at, name in enumerate(ATTENTIONS[stack]):
                shapes |= c.heads.shapes(f"{prefix}{at}.{name}.", c.hidden_size)
        return shapes

    def _feed_forward(self) -> Shapes:
        """The matrices of dense blocks."""
        c, shapes = self._config, Shapes()
        for stack, prefix, sparse in c.layers():
            if not sparse:
                mlp = f"{prefix}{len(ATTENTIONS[stack])}.mlp."
                shapes[f"{mlp}wi.weight"] = (c.intermediate_size, c.hidden_size)
                shapes[f"{mlp}wo.weight"] = (c.hidden_size, c.intermediate_size)
        return shapes

    def _routers(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for block in self._blocks():
            shapes[f"{block}router.classifier.weight"] = (c.moe.num_experts, c.hidden_size)
            if c.routing.biased:
                shapes[f"{block}router.classifier.bias"] = (c.moe.num_experts,)
        return shapes

    def _blocks(self) -> list[str]:
        """Prefixes of the blocks with experts."""
        layers = self._config.layers()
        return [f"{prefix}{len(ATTENTIONS[stack])}.mlp." for stack, prefix, sparse in layers if sparse]

    def _norms_and_biases(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for stack, prefix, _ in c.layers():
            shapes |= {f"{prefix}{at}.layer_norm.weight": (c.hidden_size,) for at in range(len(ATTENTIONS[stack]) + 1)}
        for stack in ATTENTIONS:
            shapes[f"{stack}.final_layer_norm.weight"] = (c.hidden_size,)
            shapes[RelativeBias.name(stack)] = (c.distances.num_buckets, c.heads.num_heads)
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        c = self._config
        embeddings = [f"{stack}.embed_tokens.weight" for stack in ATTENTIONS]  # one in published code, whatever is tied
        matrices = self._attention_matrices() | self._feed_forward()
        dense = self._norms_and_biases() | self._routers() | matrices
        dense |= {name: (c.vocab_size, c.hidden_size) for name in (EMBEDDING, c.head)}
        experts = PlainExperts(dict.fromkeys(self._blocks(), c.intermediate_size), ("wi", "wo"), False, c.activation)
        return replace(
            plain_experts_plan(c.moe, c.hidden_size, dense, experts),
            matrices=frozenset(matrices),
            lookups=frozenset({EMBEDDING, *embeddings}),
            head=(c.head, HEAD),
            copies=dict.fromkeys([*embeddings, *([HEAD] if c.tied else [])], EMBEDDING),
            tied_head=HEAD if c.tied else None,
            # a table that mesh_tensorflow's conversion wrote and that no model reads
            ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        )

    @property
    def workspace(self) -> Workspace:
        size = 8 * self._config.hidden_size
        attention = Workspace(size, size, source=self._config.heads.num_heads)
        return attention | block_workspace(self._routers() | self._feed_forward())

    def info(self, dtype: DType) -> ModelInfo:
        c = self._config
        layers = len(c.layers())
        sizes = Seq2seqSizes(c.context_length, c.hidden_size, c.vocab_size, layers, len(c.sparse["decoder"]), c.heads)
        return seq2seq_info(self.name, self.tensors, sizes, dtype)
