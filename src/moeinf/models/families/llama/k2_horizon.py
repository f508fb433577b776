"""K2 Horizon: norms of groups of numbers, a gate of every head's output, and values that experts make (MoVA).

In layers with experts a router of their own chooses the matrices that make a token's values, as DeepSeek-V3's chooses
experts (K2HorizonForCausalLM). These matrices are dense weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import CommonAttention, DecoderFamily, Spec
from moeinf.models.layers.attention.own_heads import HeadsPart, heads_workspace
from moeinf.models.layers.attention.routed_values import ValueExpertsPart
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.kv_cache import Cache, LayerState, OneByOne
from moeinf.models.layers.moe import BlockNames, Scoring
from moeinf.models.layers.protocol import Attention, Layers, Positions
from moeinf.models.layers.rope import Rope, rope_kind, rope_of
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.widened import widened
from moeinf.types import DType, ModelInfo, Workspace

_LN2: Final = math.log(2)
_NAMES: Final = BlockNames(bias="gate.bias")
_UNROUTED: Final = Scoring()
_NONE: Final = dict.fromkeys(("n_group", "num_nextn_predict_layers", "num_mtp_layers"))


def _parse(f: Fields) -> Spec:
    f.only("router_score_func", "sigmoid")
    f.fixed(attention_bias=False, use_sliding_window=False, hidden_act="silu")
    f.only("attention_gate_func", None, "silu", "softplus")
    f.present("head_dim", "num_experts", "norm_topk_prob", "query_key_norm", "router_scaling_factor")
    layers, step = f.count("num_hidden_layers", maximum=MOST_LAYERS), f.count("decoder_sparse_step", 1)
    dense = f.layers("mlp_only_layers")
    sparse = [i for i in range(layers) if i not in dense and (i + 1) % step == 0]
    decoder = widened(
        GroupNormed,
        parse_decoder(f, norm_eps=1e-6, theta=1e6, rope=_rope(f)),
        groups=f.count("layernorm_num_groups", 1),
    )
    heads = GatedHeads(decoder.attention, f.get("attention_gate_func"), f.flag("query_key_norm", True))
    if not f.get("num_experts"):
        return Spec(decoder, dense_mlps(f, decoder), dict.fromkeys(range(layers), heads))
    blocks = sigmoid_moe(
        f.replaced(**_NONE, routed_scaling_factor=f.number("router_scaling_factor", 1.0)),
        layers,
        normalise=False,
        moe_layers=sparse,
        shared="num_shared_experts",
    )
    scoring = replace(blocks.scoring, corrected=f.flag("moe_gate_bias", False))
    experts = f.count("mova_num_experts", 0, 0)
    used = f.count("mova_num_experts_per_tok", minimum=1, maximum=experts) if experts else 0
    routed = replace(heads, experts=experts, used=used, scoring=replace(scoring, normalise=used > 1))
    mixers = {i: routed if i in sparse else heads for i in range(layers)}
    made = [name for i in sparse for name in value_experts(decoder.attention_site(i).prefix, experts)]
    return Spec(
        decoder,
        replace(blocks, scoring=scoring, names=_NAMES),
        mixers,
        amended=lambda plan: replace(plan, matrices=plan.matrices.union(made)),
    )


def _rope(f: Fields) -> Rope:
    """Where less than a head turns, it is the first pairs of the whole head."""
    head = f.count("head_dim", minimum=2)
    turned = f.count("rope_head_dim", head, 2, head)
    rope = rope_of(f, turned, 1e6, f.count("max_position_embeddings"))
    if turned == head:
        return rope
    if rope_kind(f) not in ("default", None):
        f.only("rope_head_dim", head, None)
    frequencies = np.zeros(head // 2, np.float32)
    frequencies[: turned // 2] = rope.frequencies
    return replace(rope, frequencies=frequencies, unstretched=frequencies)


@dataclass(frozen=True, slots=True)
class GroupNormed(DecoderConfig):
    """Norms of layers and of the head's input are of groups of numbers."""

    groups: int = 1

    def block_norm(self, layer: int) -> NormConfig:
        return replace(DecoderConfig.block_norm(self, layer), groups=self.groups)

    @property
    def last_norm(self) -> NormConfig:
        return NormConfig(f"{self.prefix}{self.names.last_norm}.weight", self.attention.norm_eps, groups=self.groups)


class HorizonAttention(OneByOne[Array, Positions]):
    """moeinf.models.layers.protocol.Attention."""

    def __init__(self, layers: Layers, decoder: DecoderConfig, heads: GatedHeads, layer: int) -> None:
        weights, a, site = layers.weights, heads.config, decoder.attention_site(layer)
        self._math, prefix = weights.math, site.prefix
        self._norm = weights.norm(replace(decoder.block_norm(layer), name=site.front))
        self._q, self._k, self._o = (weights.linear(f"{prefix}{n}_proj.weight") for n in "qko")
        self._q_norm, self._k_norm = (
            weights.norm(NormConfig(f"{prefix}{n}_norm.weight", a.norm_eps, groups=count) if heads.normed else None)
            for n, count in (("q", a.num_heads), ("k", a.num_kv_heads))
        )
        self._values = (
            RoutedValues(layers, heads, prefix) if heads.experts else weights.linear(f"{prefix}v_proj.weight")
        )
        self._gate = None if heads.gate is None else weights.linear(f"{prefix}gate_proj.weight")
        self._function = weights.math.silu if heads.gate == "silu" else self._softplus_of_two
        self._core = layers.make(HeadsPart(a, layer))

    def _softplus_of_two(self, x: Array) -> Array:
        """log2(1 + 2^x)."""
        return self._math.softplus(x * _LN2) * (1 / _LN2)

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        hidden = self._norm(x)
        q, k, v = self._q_norm(self._q(hidden)), self._k_norm(self._k(hidden)), self._values(hidden)
        mixed = self._core.mixed(q, k, v, cache, positions)
        x += self._o(mixed if self._gate is None else mixed * self._function(self._gate(hidden)))


class RoutedValues:
    """norm(x) -> values: each token's experts are chosen as those of blocks are."""

    def __init__(self, layers: Layers, heads: GatedHeads, prefix: str) -> None:
        weights, self._scoring, self._used = layers.weights, heads.scoring, heads.used
        self._math, self._gate = weights.math, weights.linear(f"{prefix}v_router.weight")
        self._bias = weights.vector(f"{prefix}v_router.bias") if heads.scoring.corrected else None
        self._experts = layers.make(ValueExpertsPart(tuple(value_experts(prefix, heads.experts))))

    def __call__(self, hidden: Array) -> Array:
        scores = self._math.sigmoid(self._gate(hidden))
        ids = self._math.top_k(scores if self._bias is None else scores + self._bias, self._used)
        weights = self._math.take(scores, ids)
        if self._scoring.normalise:
            weights = weights / self._math.sum(weights, -1, True)
        return self._experts.sum_of(hidden, ids, weights * self._scoring.scaling)


def value_experts(prefix: str, count: int) -> list[str]:
    return [f"{prefix}v_experts.{number}.weight" for number in range(count)]


@dataclass(frozen=True, slots=True)
class GatedHeads(CommonAttention):
    gate: str | None  # the function; None: outputs are not gated
    normed: bool  # each head of queries and keys has a norm with weights of its own
    scoring: Scoring = _UNROUTED  # from here on: of experts that make values
    experts: int = 0
    used: int = 0

    @property
    def of_expert(self) -> int:
        """The numbers of a matrix that makes values."""
        return self.config.num_kv_heads * self.config.head_dim * self.config.hidden_size

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        a, prefix = self.config, decoder.attention_site(layer).prefix
        queries, keys, hidden = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.hidden_size
        shapes: Shapes = {f"{prefix}q_proj.weight": (queries, hidden), f"{prefix}k_proj.weight": (keys, hidden)}
        shapes[f"{prefix}o_proj.weight"] = (hidden, queries)
        shapes |= {f"{prefix}q_norm.weight": (queries,), f"{prefix}k_norm.weight": (keys,)} if self.normed else {}
        shapes |= {} if self.gate is None else {f"{prefix}gate_proj.weight": (queries, hidden)}
        if not self.experts:
            return shapes | {f"{prefix}v_proj.weight": (keys, hidden)}
        shapes |= {f"{prefix}v_router.weight": (self.experts, hidden)}
        shapes |= {f"{prefix}v_router.bias": (self.experts,)} if self.scoring.corrected else {}
        return shapes | dict.fromkeys(value_experts(prefix, self.experts), (keys, hidden))

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        keys = self.config.num_kv_heads * self.config.head_dim
        queries, routed = self.config.num_heads * self.config.head_dim, 4 * self.experts
        return heads_workspace(self.config, 3 * queries + 4 * keys + 3 * self.config.hidden_size + routed)

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> HorizonAttention:
        return HorizonAttention(layers, decoder, self, layer)


class Family(DecoderFamily):
    name = "k2_horizon"
    parse = staticmethod(_parse)

    def info(self, dtype: DType) -> ModelInfo:
        """Of the matrices that make values a token uses a few."""
        made, heads = DecoderFamily.info(self, dtype), self.spec.all_mixers
        idle = sum((each.experts - each.used) * each.of_expert for each in heads if isinstance(each, GatedHeads))
        return replace(made, active_params=made.active_params - idle)
