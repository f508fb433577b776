"""DeepSeek-V4: hyper-connections, attention to a window and to compressed tokens, first experts by a table of tokens.

Tensors have the names of the published checkpoints; transformers saves those outside of layers under others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError
from moeinf.models.activations import SILU
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.latent.compressed import MATRICES, CompressedAttention, CompressedConfig, CompressedHeads
from moeinf.models.layers.latent.indexed import IndexHeads
from moeinf.models.layers.moe import BlockNames, BlockSite, MlpForm, Moe
from moeinf.models.layers.protocol import Experts, Layers, Router, Weights
from moeinf.models.layers.rope import Rope, of_kind, rope_fields, rope_of
from moeinf.models.layers.routers import SigmoidRouter, sigmoid_moe
from moeinf.models.layers.streams.hash_table import HashColumns
from moeinf.models.layers.streams.mixed_decoder import Beside, MixedConnections, StreamNames
from moeinf.models.layers.streams.mixed_residual import MixedStreams
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.spread import NoColumns
from moeinf.models.widened import widened
from moeinf.types import ExpertForm, Profiler, TensorPlan, Workspace

_WINDOW, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {_SPARSE: 4, _HEAVY: 128}  # tokens that an entry stands for, where config.json does not say
_OLD_RATES = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
_NAMES = BlockNames(block="ffn.", bias="gate.bias", experts=("w1", "w3", "w2"), in_shared=("w1", "w3", "w2"))
STREAMS = StreamNames("hc_attn_", "hc_ffn_", "hc_head_")
_TABLE = "gate.tid2eid"
AHEAD = (r"mtp\..*",)
RENAMED = (
    (r"^(layers\..*)\.scale$", r"\1.weight_scale"),
    (r"^model\.embed_tokens\.", "embed."),
    (r"^model\.hc_head\.hc_", "hc_head_"),
    (r"^model\.(.*\.attn)\.norm\.", r"\1.kv_norm."),
    (r"^model\.", ""),
    (r"^head\.", "lm_head."),
)


def _parse(f: Fields) -> Spec:
    decoder, (main, compressed) = parse_v4(f)
    mixers, hashed = _attention(f, decoder, main, compressed), _hashed(f, decoder.num_layers)
    tables = tuple(f"layers.{i}.{_NAMES.block}{_TABLE}" for i in hashed)
    blocks = v4_blocks(f, decoder.num_layers)
    connections = HashedConnections(v4_streams(f, decoder), STREAMS, tables, blocks.moe.top_k)
    return Spec(rotated(decoder, mixers, compressed), replace(blocks, hashed=hashed), mixers, connections)


def parse_v4(f: Fields, norm_eps: float = 1e-6) -> tuple[DecoderConfig, tuple[Rope, Rope]]:
    """The decoder, and the positions of layers with a window alone and of the others. norm_eps: the default."""
    f.only("hidden_act", *SILU, None)
    f.fixed(
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        n_shared_experts=1,
        num_key_value_heads=1,
        attention_bias=False,
    )
    f.only("intermediate_size", f.get("moe_intermediate_size"), None)  # transformers' other name for it
    head_dim, context = f.count("head_dim", 512), f.count("max_position_embeddings")
    ropes = _ropes(f, head_dim, context)
    decoder = parse_decoder(f, norm_eps=norm_eps, theta=1e4, rope=ropes[0], num_kv_heads=1, head_dim=head_dim)
    norms = LayerNorms(attention="attn_norm", block="ffn_norm")
    named = decoder.named(norms=norms, prefix="", embedding="embed", attention="attn")
    return replace(named, replaces=True), ropes


def rotated(decoder: DecoderConfig, mixers: Mapping[int, CompressedConfig], rope: Rope) -> DecoderConfig:
    """The same where layers that see entries have other positions."""
    of_entries = replace(decoder.attention, rope=rope)
    return replace(decoder, special={i: of_entries for i, mixer in mixers.items() if mixer.heads.rate})


def v4_streams(f: Fields, decoder: DecoderConfig) -> MixedStreams:
    return MixedStreams(
        f.count("hc_mult", 4, minimum=2, maximum=64),
        decoder.attention.hidden_size,
        decoder.attention.norm_eps,
        f.number("hc_eps", 1e-6),
        f.count("hc_sinkhorn_iters", 20, maximum=1000),
    )


def v4_blocks(f: Fields, num_layers: int) -> HashedMoe:
    """With routers in all layers."""
    scaling, limit = f.number("routed_scaling_factor", 1.5), f.number("swiglu_limit", 10.0)
    blocks = sigmoid_moe(
        f.replaced(intermediate_size=None, n_shared_experts=1, routed_scaling_factor=scaling),
        num_layers,
        router=LearnedRouter,
        num_future_layers=1,
        moe_layers=range(num_layers),
    )
    blocks = replace(
        blocks,
        names=_NAMES,
        form=MlpForm(f.flag("mlp_bias", False), limit),
        expert_form=ExpertForm("silu_clamped", limit=limit),
        num_future_layers=0,  # they lie apart
    )
    return widened(HashedMoe, blocks)


def v4_index(f: Fields, num_heads: int, rotary_dim: int) -> IndexHeads:
    """num_heads: the default."""
    index = IndexHeads(
        f.count("index_n_heads", num_heads),
        f.count("index_head_dim", 128),
        f.count("index_topk", 512),
        interleaved=True,
    )
    if index.head_dim < rotary_dim:
        raise CheckpointError(
            f"{f.where}: index_head_dim {index.head_dim} is below the {rotary_dim} numbers that are rotated"
        )
    return index


def v4_ranks(f: Fields, num_heads: int) -> tuple[int, int, int]:
    """Of queries; how many groups of heads there are; of a group."""
    groups = f.count("o_groups", 8)
    if num_heads % groups:
        raise CheckpointError(f"{f.where}: {num_heads} heads are no whole number of {groups} groups (o_groups)")
    return f.count("q_lora_rank", 1024), groups, f.count("o_lora_rank", 1024)


def _attention(f: Fields, decoder: DecoderConfig, main: Rope, compressed: Rope) -> dict[int, CompressedConfig]:
    """Of each layer."""
    a, kinds, rates = decoder.attention, _kinds(f, decoder.num_layers), _rates(f)
    index, window = v4_index(f, 64, compressed.rotary_dim), f.count("sliding_window", 128)
    of_kind = {
        _WINDOW: CompressedHeads(a.num_heads, a.head_dim, main, window),
        _SPARSE: CompressedHeads(a.num_heads, a.head_dim, compressed, window, rates[_SPARSE], True, index),
        _HEAVY: CompressedHeads(a.num_heads, a.head_dim, compressed, window, rates[_HEAVY]),
    }
    ranks = v4_ranks(f, a.num_heads)
    return {i: CompressedConfig(a.hidden_size, of_kind[kind], *ranks, a.norm_eps) for i, kind in enumerate(kinds)}


def _kinds(f: Fields, num_layers: int) -> tuple[str, ...]:
    """Of each layer: layer_types, or compress_ratios of the published checkpoints, which may count MTP layers, too."""
    kinds = f.kinds("layer_types", num_layers, _WINDOW, _SPARSE, _HEAVY)
    if kinds is not None:
        return kinds
    ratios = f.get("compress_ratios")
    if ratios is None:
        return (_HEAVY,) * min(num_layers, 2) + tuple(_SPARSE if i % 2 else _HEAVY for i in range(num_layers - 2))
    by_ratio = {0: _WINDOW} | {rate: kind for kind, rate in _RATES.items()}
    if not isinstance(ratios, list) or len(ratios) < num_layers or any(each not in list(by_ratio) for each in ratios):
        raise CheckpointError(f"{f.where}: compress_ratios must be 0, 4 or 128 for each of {num_layers} layers")
    return tuple(by_ratio[ratio] for ratio in ratios[:num_layers])


def _rates(f: Fields) -> dict[str, int]:
    given = f.within("compress_rates")
    given.refuse_others(*_RATES)
    rates = {kind: given.count(kind, rate) for kind, rate in _RATES.items()} if given.names else dict(_RATES)
    return {kind: f.count(_OLD_RATES[kind], rate, maximum=1 << 16) for kind, rate in rates.items()}


def _hashed(f: Fields, num_layers: int) -> tuple[int, ...]:
    kinds = f.kinds("mlp_layer_types", num_layers, "hash_moe", "moe")
    if kinds is None:
        return tuple(range(min(num_layers, f.count("num_hash_layers", 3, minimum=0, maximum=MOST_LAYERS))))
    return tuple(i for i, kind in enumerate(kinds) if kind == "hash_moe")


def _ropes(f: Fields, head_dim: int, context: int) -> tuple[Rope, Rope]:
    """Of layers with a window alone, and of those with entries, which have another theta, and yarn where config.json
    says so; yarn of a config that has one object for both multiplies neither queries nor keys."""
    r = rope_fields(f)
    if r.get("main") is not None or r.get("compress") is not None:
        r.refuse_others("main", "compress")
        found = [of_kind(f, kind) for kind in ("main", "compress")]
        factors = [rope_fields(each).number("partial_rotary_factor", 1.0) for each in found]
    else:
        f.present("compress_rope_theta")
        factor = _partial(f, head_dim)
        r.only("partial_rotary_factor", factor, None)
        r.only("rope_theta", f.get("rope_theta"), None)
        kind = r.get("rope_type") or r.get("type") or "default"
        values = {name: r.get(name) for name in r.names if name not in ("type", "partial_rotary_factor")}
        values |= {"rope_type": kind, "rope_theta": f.number("compress_rope_theta")}
        if kind == "yarn":
            values["attention_factor"] = r.number("attention_factor", 1.0)
        kept = "rope_scaling" if f.get("rope_scaling") else "rope_parameters"
        plain = f.replaced(rope_parameters={"rope_theta": f.number("rope_theta", 1e4)}, rope_scaling=None)
        found, factors = (
            [plain, f.replaced(**{"rope_parameters": None, "rope_scaling": None, kept: values})],
            [factor] * 2,
        )
    for each in found:
        rope_fields(each).only("rope_type", "default", "yarn", None)
        rope_fields(each).only("truncate", True, None)  # which transformers looks for in another place
    sizes = [int(head_dim * factor) for factor in factors]
    if any(not 2 <= size <= head_dim or size % 2 for size in sizes):
        raise CheckpointError(
            f"{f.where}: partial_rotary_factor of head_dim, {head_dim}, gives {sizes}, no even numbers"
        )
    main, compressed = (
        rope_of(each, size, 1e4, context, interleaved=True) for each, size in zip(found, sizes, strict=True)
    )
    return main, compressed


def _partial(f: Fields, head_dim: int) -> float:
    if f.get("partial_rotary_factor") is None and f.get("qk_rope_head_dim") is not None:
        return f.count("qk_rope_head_dim", minimum=2) / head_dim
    return f.number("partial_rotary_factor", 64 / 512)


class LearnedRouter(SigmoidRouter):
    """The same with scores sqrt(softplus(w x))."""

    def _scores(self, logits: Array) -> Array:
        return self._math.softplus(logits) ** 0.5


class HashRouter:
    """The experts that a table has of the token, weighted by their scores."""

    def __init__(self, weights: Weights, moe: Moe, site: BlockSite, given: Given, table: int) -> None:
        """given: what the host has looked up, of all tables; table: the number of this layer's."""
        self._math, self._routing, self._scaling = weights.math, weights.routing, moe.scoring.scaling
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._given, top_k = given, moe.moe.top_k
        self._columns = slice(table * top_k, (table + 1) * top_k)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._math, self._norm(x)
        ids = math.integers(self._given.rows[0][:, self._columns])
        weights = math.take(math.softplus(self._gate(hidden)) ** 0.5, ids)
        weights = weights / (math.sum(weights, -1, True) + SigmoidRouter.added)
        return hidden, self._routing(ids, weights * self._scaling)


@dataclass(frozen=True, slots=True)
class HashedMoe(Moe):
    hashed: tuple[int, ...] = ()  # layers whose experts are looked up by token

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes = Moe.shapes(self, decoder)
        for i in self.hashed:
            del shapes[decoder.layer(i) + self.names.block + self.names.bias]
        return shapes

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan, names = Moe.plan(self, decoder, dense), self.names
        tables = {decoder.layer(i) + names.block + _TABLE: self.moe.experts_of(i) for i in self.hashed}
        shared = tuple(f".{names.shared}{name}.weight" for name in names.in_shared)
        matrices = frozenset(name for name in dense if name.endswith((*MATRICES, *shared)))
        return replace(plan, matrices=matrices, lookups=plan.lookups | tables.keys(), whole=tables)


@dataclass(frozen=True, slots=True)
class HashedConnections(MixedConnections):
    tables: tuple[str, ...]  # of the experts of each token
    top_k: int

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        return MixedConnections.shapes(self, decoder) | dict.fromkeys(self.tables, (decoder.vocab_size, self.top_k))

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        found = MixedConnections.workspace(self, decoder, mixers)
        return replace(found, token=found.token + len(self.tables) * self.top_k)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        given = Given()

        def router(layers: Layers, moe: Moe, site: BlockSite) -> Router:
            table = site.block + _TABLE
            if table in self.tables:
                return HashRouter(layers.weights, moe, site, given, self.tables.index(table))
            return LearnedRouter(layers, moe, site)

        assert isinstance(spec.blocks, HashedMoe)
        blocks = replace(spec.blocks, router=router).make(spec.decoder, layers, experts, profiler)
        attention = spec.attention(layers)
        compressed = (each for each in attention if isinstance(each, CompressedAttention))
        states = [each.new_entries for each in compressed if each.has_entries]
        columns = HashColumns(layers, self.tables) if self.tables else NoColumns()
        beside = Beside(columns, given, states)
        return self.mixed(spec.decoder, layers, attention, blocks, experts, profiler, beside)


class Family(DecoderFamily):
    name = "deepseek_v4"
    divisible = False
    parse = staticmethod(_parse)
    ahead = AHEAD
    renamed = RENAMED
