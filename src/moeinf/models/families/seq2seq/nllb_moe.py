"""NLLB-MoE: M2M-100, told its 200 languages, with experts in every fourth block, two a token (arXiv 2207.04672)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from sys import float_info

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields, moe_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import EncoderDecoderFamily
from moeinf.models.layers.attention_config import Heads, NormConfig, Shapes
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
    Expected,
    Float32Array,
    IntArray,
    JsonObject,
    ModelInfo,
    MoeShape,
    Profiler,
    TensorPlan,
    Workspace,
)

HEAD = "lm_head.weight"
NORM_EPS = 1e-5
EPS = np.float32(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class Stack:
    """The encoder or the decoder."""

    heads: Heads
    intermediate_size: int
    sparse: tuple[bool, ...]  # of each layer: whether it has experts


@dataclass(frozen=True, slots=True)
class Routing:
    expert_scale: float  # of the weights
    biased: bool
    capacity: float  # share of a source's tokens that an expert takes; from 1 on, none overflows
    likeliest_first: bool  # whether experts take these of a source's tokens, and not the earliest
    normalised_first: bool  # the weights of a token's experts, before those that overflow are left out


@dataclass(frozen=True, slots=True)
class Config:
    prefix: str  # of all tensors but the head
    encoder: Stack
    decoder: Stack
    moe: MoeShape
    hidden_size: int
    vocab_size: int
    context_length: int
    padding_id: int
    embedding_scale: float
    routing: Routing
    tied: bool  # one matrix embeds the source and the answer, and makes logits, unless a checkpoint has others there
    activation: Activation

    @staticmethod
    def parse(config: JsonObject) -> Config:
        f = Fields(config)
        f.fixed(router_dtype="float32", router_type="tokens_masked", second_expert_policy="all")
        f.only("quantization_config", None)
        for other, name in (
            ("hidden_size", "d_model"),
            ("num_hidden_layers", "encoder_layers"),
            ("num_attention_heads", "encoder_attention_heads"),
        ):
            f.only(other, f.get(name), None)  # means the same
        hidden = f.count("d_model", minimum=4)
        stacks = {name: _stack(f, name, hidden) for name in ("encoder", "decoder")}
        num_layers = sum(sum(stack.sparse) for stack in stacks.values())
        if not num_layers:
            raise CheckpointError("config.json: encoder_sparse_step and decoder_sparse_step leave no layer its experts")
        return Config(
            # as saved from the model without its head, which is the embedding: the published checkpoint
            prefix="" if config.get("architectures") == ["NllbMoeModel"] else "model.",
            encoder=stacks["encoder"],
            decoder=stacks["decoder"],
            moe=moe_shape(num_layers, f.count("num_experts"), 2),
            hidden_size=hidden,
            vocab_size=f.count("vocab_size"),
            context_length=f.count("max_position_embeddings", 1024),
            padding_id=f.count("pad_token_id", 1, minimum=0),
            embedding_scale=hidden**0.5 if f.flag("scale_embedding", True) else 1.0,
            routing=Routing(
                expert_scale=1.0 - _share(f, "moe_token_dropout", 0.2),
                biased=f.flag("router_bias", False),
                capacity=_capacity(f),
                likeliest_first=f.flag("batch_prioritized_routing", False),
                normalised_first=f.flag("normalize_router_prob_before_dropping", False),
            ),
            tied=f.get("tie_word_embeddings") is None or f.flag("tie_word_embeddings", True),
            activation=activation_of(f, "activation_function", "relu"),
        )

    @property
    def embeddings(self) -> tuple[str, str]:
        """What those of the source and of the answer are called where they are not one."""
        return f"{self.prefix}encoder.embed_tokens.weight", f"{self.prefix}decoder.embed_tokens.weight"

    def layers(self) -> list[tuple[str, Stack, str, bool]]:
        """(stack's name, the stack, prefix, whether it has experts) of every layer, the encoder's first."""
        return [
            (name, stack, f"{self.prefix}{name}.layers.{i}.", sparse)
            for name, stack in (("encoder", self.encoder), ("decoder", self.decoder))
            for i, sparse in enumerate(stack.sparse)
        ]


def _stack(f: Fields, name: str, hidden: int) -> Stack:
    heads, step = f.count(f"{name}_attention_heads"), f.count(f"{name}_sparse_step", 4, minimum=0)
    if hidden % heads:
        raise CheckpointError(f"config.json: d_model {hidden} is no multiple of {name}_attention_heads {heads}")
    sparse = tuple(step > 0 and (i + 1) % step == 0 for i in range(f.count(f"{name}_layers", maximum=MOST_LAYERS)))
    size = hidden // heads
    return Stack(
        Heads(heads, size, size**-0.5, True, ("q_proj", "k_proj", "v_proj", "out_proj")),
        f.count(f"{name}_ffn_dim"),
        sparse,
    )


def _share(f: Fields, name: str, default: float) -> float:
    value = default if f.get(name) is None else f.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise CheckpointError(f"config.json: {name} is {value!r:.100}; must be a number from 0, below 1")
    return float(value)


def _capacity(f: Fields) -> float:
    value = f.get("moe_eval_capacity_token_fraction")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= float_info.max:
        raise UnsupportedModelError(
            f"config.json: moe_eval_capacity_token_fraction is {value!r:.100}; must be a number above 0"
        )
    return float(value)


class Router:
    """The two likeliest experts of each token, weighted by their probabilities made to sum to 1, in float32.

    Training masks a share of the experts' outputs; inference multiplies them by the share that it keeps (expert output
    masking, section 6.2.1). That factor is in the weights here.

    Where an expert is given more than its share of a source's tokens, it leaves the later ones out, or those whose
    likeliest expert is less likely: first come those that it is the likeliest of, then those that it is the second of.
    An answer's tokens are counted one by one, as they are decoded, and so never overflow.
    """

    def __init__(self, weights: Weights, c: Config, prefix: str, norm: Norm, capacity: float) -> None:
        self._weights, self._norm, self._scale = weights, norm, np.float32(c.routing.expert_scale)
        self._num_experts, self._capacity, self._normalised_first = (
            c.moe.num_experts,
            capacity,
            c.routing.normalised_first,
        )
        self._likeliest_first = c.routing.likeliest_first
        self._weight = weights.vector(f"{prefix}classifier.weight").reshape(c.moe.num_experts, c.hidden_size)
        self._bias = weights.vector(f"{prefix}classifier.bias") if c.routing.biased else np.float32(0)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._weights.math, self._norm(x)
        probabilities = math.softmax(hidden @ self._weight.T + self._bias)
        ids = math.top_k(probabilities, 2)
        weights = counted = math.take(probabilities, ids)
        if self._capacity < 1:
            within = self._within_capacity_by_size if self._likeliest_first else self._within_capacity
            weights = weights * within(ids, weights)
            counted = counted if self._normalised_first else weights
        total = math.clip(math.sum(counted, -1, keepdims=True), float(EPS), 2.0)
        return hidden, self._weights.routing(ids, weights / total * self._scale)

    def _within_capacity_by_size(self, ids: Array, weights: Array) -> Array:
        """As if the tokens came in the order of their larger weight."""
        math, count = self._weights.math, len(ids)
        order = math.top_k(weights[:, :1].swapaxes(0, 1), count)  # [1, tokens]
        back = math.top_k(order * -1.0, count)

        def sorted_by(of_tokens: Array, places: Array) -> Array:
            return math.take(of_tokens.swapaxes(0, 1), math.concatenate([places, places], 0)).swapaxes(0, 1)

        return sorted_by(self._within_capacity(sorted_by(ids, order), weights), back)

    def _within_capacity(self, ids: Array, weights: Array) -> Array:
        """ids [tokens, 2] -> the same, whether the expert takes the token."""
        math, experts = self._weights.math, self._num_experts
        first, second = ids[:, :1], ids[:, 1:]
        firsts = math.sum(first == math.of_host(np.arange(experts)[None]), 0, keepdims=True)  # [1, experts]
        before = math.take(firsts + second * 0, second)
        number = math.concatenate(
            [nth_of_its_expert(math, first, experts), before + nth_of_its_expert(math, second, experts)], 1
        )
        within: Array = number <= ceil(self._capacity * len(ids))
        return within


def sinusoids(positions: IntArray, hidden_size: int) -> Float32Array:
    """[tokens, hidden]: sines, then cosines, as of tensor2tensor: frequencies 10000^(-i / (hidden / 2 - 1))."""
    half = hidden_size // 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-np.log(10000) / (half - 1)))
    angles = positions.astype(np.float32)[:, None] * frequencies
    waves = [np.sin(angles), np.cos(angles), np.zeros((len(positions), hidden_size % 2), np.float32)]
    table: Float32Array = np.concatenate(waves, axis=1)
    return table


class Family(EncoderDecoderFamily):
    name = "nllb-moe"

    def __init__(self, config: JsonObject) -> None:
        self._config = c = Config.parse(config)
        f = Fields(config)
        self.encoder_input = EncoderInput(
            f.count("decoder_start_token_id", 2, minimum=0),
            f.count("eos_token_id", 2, minimum=0),
            sum(c.encoder.sparse),
            languages=True,
        )

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> EncoderDecoder:
        c, weights, moe_layer = self._config, layers.weights, 0
        encoder, decoder = list[EncoderLayer](), list[DecoderLayer]()

        def norm(name: str) -> Norm:
            return weights.norm(NormConfig(f"{name}layer_norm.weight", NORM_EPS, "layer"))

        for stack_name, stack, prefix, sparse in c.layers():
            ffn = f"{prefix}ffn."
            if sparse:
                capacity = c.routing.capacity if stack_name == "encoder" else 1.0
                router = Router(weights, c, f"{ffn}router.", norm(f"{prefix}ff_"), capacity)
                block: Block = MoeBlock(moe_layer, router, experts, profiler)
                moe_layer += 1
            else:
                block = FeedForward(weights, ffn, ("fc1", "fc2"), True, norm(f"{prefix}ff_"), c.activation)
            attention = Attention(layers, stack.heads, f"{prefix}self_attn.", norm(f"{prefix}self_attn_"))
            if stack_name == "encoder":
                encoder.append(EncoderLayer(attention, block))
            else:
                cross = Attention(layers, stack.heads, f"{prefix}cross_attention.", norm(f"{prefix}cross_attention_"))
                decoder.append(DecoderLayer(attention, cross, block))
        shared = f"{c.prefix}shared.weight"
        first_position = c.padding_id + 1

        def embed_by(name: str) -> Callable[[Sequence[int], IntArray], Hidden]:
            embedding = layers.embedding(name if name in weights else shared)

            def embed(token_ids: Sequence[int], positions: IntArray) -> Hidden:
                waves = weights.math.of_host(sinusoids(positions + first_position, c.hidden_size))
                x: Hidden = embedding(token_ids) * np.float32(c.embedding_scale) + waves
                return x

            return embed

        embed_source, embed = map(embed_by, c.embeddings)
        head_norm, product = norm(f"{c.prefix}decoder."), weights.linear(HEAD if HEAD in weights else shared)
        return EncoderDecoder(
            layers,
            experts,
            profiler,
            Encoder(embed_source, encoder, norm(f"{c.prefix}encoder.")),
            AnswerDecoder(embed, decoder, lambda x: product(head_norm(x))),
        )

    def _attention_matrices(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for stack_name, stack, prefix, _ in c.layers():
            shapes |= stack.heads.shapes(f"{prefix}self_attn.", c.hidden_size)
            if stack_name == "decoder":
                shapes |= stack.heads.shapes(f"{prefix}cross_attention.", c.hidden_size)
        return shapes

    def _feed_forward(self) -> Shapes:
        """The matrices of dense blocks, and their biases."""
        c, shapes = self._config, Shapes()
        for _, stack, prefix, sparse in c.layers():
            if not sparse:
                shapes |= {
                    f"{prefix}ffn.fc1.weight": (stack.intermediate_size, c.hidden_size),
                    f"{prefix}ffn.fc1.bias": (stack.intermediate_size,),
                    f"{prefix}ffn.fc2.weight": (c.hidden_size, stack.intermediate_size),
                    f"{prefix}ffn.fc2.bias": (c.hidden_size,),
                }
        return shapes

    def _routers(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for _, _, prefix, sparse in c.layers():
            if sparse:
                shapes[f"{prefix}ffn.router.classifier.weight"] = (c.moe.num_experts, c.hidden_size)
                if c.routing.biased:
                    shapes[f"{prefix}ffn.router.classifier.bias"] = (c.moe.num_experts,)
        return shapes

    def _norms(self) -> Shapes:
        c = self._config
        names = [f"{c.prefix}{stack}.layer_norm" for stack in ("encoder", "decoder")]
        for stack_name, _, prefix, _ in c.layers():
            names += [f"{prefix}self_attn_layer_norm", f"{prefix}ff_layer_norm"]
            names += [f"{prefix}cross_attention_layer_norm"] if stack_name == "decoder" else []
        return {f"{name}.{kind}": (c.hidden_size,) for name in names for kind in ("weight", "bias")}

    @cached_property
    def tensors(self) -> TensorPlan:
        c, embedding = self._config, f"{self._config.prefix}shared.weight"
        matrices = self._attention_matrices() | self._feed_forward()
        named = (embedding, *(() if c.tied else (HEAD,)))
        dense = self._routers() | self._norms() | dict.fromkeys(named, (c.vocab_size, c.hidden_size)) | matrices
        blocks = {f"{prefix}ffn.": stack.intermediate_size for _, stack, prefix, sparse in c.layers() if sparse}
        plan = plain_experts_plan(c.moe, c.hidden_size, dense, PlainExperts(blocks, ("fc1", "fc2"), True, c.activation))
        return replace(
            plan,
            matrices=frozenset(name for name in matrices if name.endswith("weight")),
            lookups=frozenset({embedding, *c.embeddings}),
            head=(embedding if c.tied else HEAD, HEAD),
            copies=dict.fromkeys((*c.embeddings, *((HEAD,) if c.tied else ())), embedding),
            tied_head=HEAD if c.tied else None,
            follows={rf"{re.escape(c.prefix)}(encoder|decoder)\.embed_positions\.weights": self._waves},
        )

    def _waves(self, name: str) -> list[Expected]:
        """The table of positions, of which two are not used, and that of padding is zero."""
        c = self._config
        table = sinusoids(np.arange(c.context_length + 2), c.hidden_size).astype(np.float64)
        table[c.padding_id : c.padding_id + 1] = 0
        return [Expected(table, error=1e-3)]

    @property
    def workspace(self) -> Workspace:
        c = self._config
        attention = Workspace(8 * c.hidden_size, 8 * c.hidden_size, source=c.encoder.heads.num_heads)
        return attention | block_workspace(self._routers() | self._feed_forward())

    def info(self, dtype: DType) -> ModelInfo:
        c = self._config
        layers, decoder = len(c.layers()), c.decoder
        sizes = Seq2seqSizes(c.context_length, c.hidden_size, c.vocab_size, layers, len(decoder.sparse), decoder.heads)
        return seq2seq_info(self.name, self.tensors, sizes, dtype)
