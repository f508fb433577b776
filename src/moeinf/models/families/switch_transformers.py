"""Switch Transformers: T5 whose every other block has experts, of which a token takes one (arXiv 2101.03961)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields, moe_shape
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.decoder import MoeBlock
from moeinf.models.layers.encoder_decoder import (
    Attention,
    DecoderLayer,
    EncoderDecoder,
    EncoderLayer,
    FeedForward,
    Heads,
    nth_of_its_expert,
    plain_experts_plan,
    seq2seq_info,
)
from moeinf.models.layers.protocol import Block, Layers, Shapes, Weights
from moeinf.types import DType, Experts, Hidden, IntArray, ModelInfo, MoeShape, Profiler, Prompting, TensorPlan

EMBEDDING, HEAD = "shared.weight", "lm_head.weight"
TRAINED_TOKENS = 512  # of a source (section 2.1); relative positions set no limit of their own


@dataclass(frozen=True, slots=True)
class Config:
    heads: Heads
    moe: MoeShape
    encoder: tuple[bool, ...]  # of each layer: whether it has experts
    decoder: tuple[bool, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    num_buckets: int
    max_distance: int
    norm_eps: float
    expert_capacity: int
    router_bias: bool
    tied: bool  # one matrix embeds the source and the answer, and makes logits; else each has its own

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("feed_forward_proj", "relu", None)
        f.only("dense_act_fn", "relu", None)
        f.only("is_gated_act", False, None)
        f.only("router_type", "tokens_masked", None)
        f.only("router_dtype", "float32", None)
        f.only("num_selected_experts", 1, None)
        f.only("quantization_config", None)
        f.present("num_decoder_layers")
        num_layers = f.count_of("num_layers", "num_hidden_layers", maximum=MOST_LAYERS)
        stacks = []
        num_decoder_layers = f.count("num_decoder_layers", num_layers, maximum=MOST_LAYERS)
        for name, layers in (("encoder", num_layers), ("decoder", num_decoder_layers)):
            step = f.count(f"{name}_sparse_step", layers // f.count(f"num_sparse_{name}_layers", 3), minimum=0)
            stacks.append(tuple(step > 0 and (step == 1 or i % step == 1) for i in range(layers)))
        if not any(map(any, stacks)):
            raise CheckpointError(
                "config.json: num_sparse_encoder_layers and num_sparse_decoder_layers leave no layer with experts"
            )
        return Config(
            heads=Heads(f.count_of("num_heads", "num_attention_heads"), f.count("d_kv"), scale=1.0, biased=False),
            moe=moe_shape(sum(map(sum, stacks)), f.count("num_experts"), 1),
            encoder=stacks[0],
            decoder=stacks[1],
            hidden_size=f.count_of("d_model", "hidden_size"),
            intermediate_size=f.count("d_ff"),
            vocab_size=f.count("vocab_size"),
            context_length=f.count("n_positions", TRAINED_TOKENS),
            num_buckets=f.count("relative_attention_num_buckets", 32, minimum=4),
            max_distance=f.count("relative_attention_max_distance", 128),
            norm_eps=f.number("layer_norm_epsilon", 1e-6),
            expert_capacity=f.count("expert_capacity", 64),
            router_bias=f.flag("router_bias", False),
            tied=f.get("tie_word_embeddings") is None or f.flag("tie_word_embeddings", True),
        )

    def embedding(self, stack: str) -> str:
        return EMBEDDING if self.tied else f"{stack}.embed_tokens.weight"

    @property
    def head(self) -> str:
        return EMBEDDING if self.tied else HEAD

    def layers(self) -> list[tuple[str, str, bool]]:
        """(stack, prefix, whether it has experts) of every layer, the encoder's first."""
        return [
            (stack, f"{stack}.block.{i}.layer.", sparse)
            for stack, layers in (("encoder", self.encoder), ("decoder", self.decoder))
            for i, sparse in enumerate(layers)
        ]


class Router:
    """The likeliest expert of each token and its probability, computed in float32 (section 2.4).

    Where an expert has more tokens of a source than its capacity, the later ones are given nothing by it, and pass the
    layer unchanged (section 2.2). transformers counts within the pass: an answer, decoded token by token, never
    overflows.
    """

    def __init__(self, weights: Weights, c: Config, prefix: str, norm: str, capacity: int | None) -> None:
        self._weights, self._capacity, self._num_experts = weights, capacity, c.moe.num_experts
        self._norm = weights.norm(norm, c.norm_eps)
        self._weight = weights.vector(f"{prefix}classifier.weight").reshape(c.moe.num_experts, c.hidden_size)
        self._bias = weights.vector(f"{prefix}classifier.bias") if c.router_bias else np.float32(0)

    def __call__(self, x: Hidden) -> tuple[Hidden, Any]:
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
        name = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self._table = weights.vector(name).reshape(c.num_buckets, c.heads.num_heads).T
        self._of_host = weights.math.of_host
        self._two_sided = stack == "encoder"
        self._num_buckets, self._max_distance = c.num_buckets, c.max_distance

    def __call__(self, ahead: IntArray) -> Array:
        """ahead [...]: place of the key less place of the query -> [heads, ...]"""
        return self._table[:, self._of_host(self._bucket(ahead))]

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


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    hidden, dense, blocks = c.hidden_size, dict[str, tuple[int, ...]](), list[str]()
    matrices: Shapes = {}
    for stack, prefix, sparse in c.layers():
        names = ["SelfAttention"] if stack == "encoder" else ["SelfAttention", "EncDecAttention"]
        for at, name in enumerate(names):
            matrices |= c.heads.shapes(f"{prefix}{at}.{name}.", hidden)
        dense |= {f"{prefix}{at}.layer_norm.weight": (hidden,) for at in range(len(names) + 1)}
        mlp = f"{prefix}{len(names)}.mlp."
        if sparse:
            blocks.append(mlp)
            dense[f"{mlp}router.classifier.weight"] = (c.moe.num_experts, hidden)
            dense |= {f"{mlp}router.classifier.bias": (c.moe.num_experts,)} if c.router_bias else {}
        else:
            matrices |= {
                f"{mlp}wi.weight": (c.intermediate_size, hidden),
                f"{mlp}wo.weight": (hidden, c.intermediate_size),
            }
    for stack in ("encoder", "decoder"):
        dense[f"{stack}.final_layer_norm.weight"] = (hidden,)
        dense[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (
            c.num_buckets,
            c.heads.num_heads,
        )
    embeddings = frozenset({EMBEDDING, *(c.embedding(stack) for stack in ("encoder", "decoder"))})
    dense |= {name: (c.vocab_size, hidden) for name in (*embeddings, c.head)}  # EMBEDDING is there if nothing reads it
    # the same as the embedding
    tied = (r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight") if c.tied else ()
    ignored = (
        *tied,
        # a table that mesh_tensorflow's conversion wrote and that no model reads
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    )
    return plain_experts_plan(
        c.moe,
        dense | matrices,
        dict.fromkeys(blocks, c.intermediate_size),
        hidden,
        ("wi", "wo"),
        c.heads.num_heads,
        biased=False,
        embeddings=embeddings,
        head=c.head,
        matrices=frozenset(matrices),
        ignored=ignored,
    )


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return seq2seq_info(
        "switch_transformers",
        tensor_plan(config),
        c.heads,
        context_length=c.context_length,
        hidden_size=c.hidden_size,
        num_layers=len(c.layers()),
        num_decoder_layers=len(c.decoder),
        vocab_size=c.vocab_size,
        dtype=dtype,
    )


def prompting(config: dict[str, Any]) -> Prompting:
    f = Fields(config)
    return Prompting(
        f.count("decoder_start_token_id", 0, minimum=0),
        f.count("eos_token_id", 1, minimum=0),
        sum(Config.parse(config).encoder),
    )


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> EncoderDecoder:
    c = Config.parse(config)
    encoder, decoder, moe_layer = list[EncoderLayer](), list[DecoderLayer](), 0

    def attention(prefix: str, at: int, name: str) -> Attention:
        norm = layers.weights.norm(f"{prefix}{at}.layer_norm.weight", c.norm_eps)
        return Attention(layers, c.heads, f"{prefix}{at}.{name}.", norm)

    for stack, prefix, sparse in c.layers():
        at = 1 if stack == "encoder" else 2
        mlp, norm = f"{prefix}{at}.mlp.", f"{prefix}{at}.layer_norm.weight"
        if sparse:
            capacity = c.expert_capacity if stack == "encoder" else None
            block: Block = MoeBlock(
                moe_layer, Router(layers.weights, c, f"{mlp}router.", norm, capacity), experts, profiler
            )
            moe_layer += 1
        else:
            block = FeedForward(layers.weights, mlp, ("wi", "wo"), False, layers.weights.norm(norm, c.norm_eps))
        if stack == "encoder":
            encoder.append(EncoderLayer(attention(prefix, 0, "SelfAttention"), block))
        else:
            decoder.append(
                DecoderLayer(attention(prefix, 0, "SelfAttention"), attention(prefix, 1, "EncDecAttention"), block)
            )

    def embed_by(name: str) -> Callable[[Sequence[int], IntArray], Hidden]:
        embedding = layers.embedding(name)
        return lambda ids, places: embedding(ids)

    head = layers.head(
        HEAD if HEAD in layers.weights else EMBEDDING,
        "decoder.final_layer_norm.weight",
        c.norm_eps,
        scale=c.hidden_size**-0.5 if c.tied else 1.0,
    )  # as of every T5 whose head is the embedding
    return EncoderDecoder(
        layers,
        experts,
        profiler,
        embed=embed_by(c.embedding("decoder")),
        head=head,
        embed_source=None if c.tied else embed_by(c.embedding("encoder")),
        encoder=encoder,
        encoder_bias=RelativeBias(layers.weights, c, "encoder"),
        encoder_norm=layers.weights.norm("encoder.final_layer_norm.weight", c.norm_eps),
        decoder=decoder,
        decoder_bias=RelativeBias(layers.weights, c, "decoder"),
    )
