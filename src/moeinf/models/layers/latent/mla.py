"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): one compressed row a token is cached.

Of a token's hidden state h, W_DKV makes a latent c [rank] and a rotary key r [rotary_dim], which all heads share; a
head's keys W_UK c and values W_UV c are never made. Instead each query is taken into the latents' space and each
mixture of latents out of it (section 2.1.2):

    score(t, s) = (W_UK^T q_t) . c_s + q'_t . r_s        out_t = W_UV sum_s p(t, s) c_s

so that all heads attend, like queries that share one key/value head, to the rows [c | r] of rank + rotary_dim numbers,
whose first `rank` are the values as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A, Array, Hidden
from moeinf.models.layers.attention.token_rows import K, MemoryOf, RowsOf, TokenState
from moeinf.models.layers.attention_config import NormConfig, Scores, Shapes, Sharpening
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.kv_cache import Cache, LayerState, OneByOne, Span
from moeinf.models.layers.protocol import Attention, Layers, P, P_contra, Part, Positions, R
from moeinf.models.layers.rope import Rope, mscale, rope_fields, rope_of
from moeinf.types import LatentSizes, Workspace

LATENT_EPS = 1e-6  # of the norms of latents: the published code leaves them at their default, whatever rms_norm_eps is
INSIDE = 4 << 20  # numbers in the latents' space, and scores, that exist at once
_BIASED = ("q_a_proj", "kv_a_proj_with_mqa")  # by attention_bias: what meets the hidden state, but q_proj; output too


@dataclass(frozen=True, slots=True)
class Growth:
    """Queries at position p are multiplied by scale ln(p + 1) + bias, of which each head has its own."""

    scale: str  # names of tensors, [heads]
    bias: str


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The heads of multi-head latent attention."""

    num_heads: int
    qk_nope_head_dim: int  # of a head's query and key, the part without positions
    rope: Rope  # of the part that is rotated
    scale: float  # of the scores
    sharpening: Sharpening | None = None  # of the queries
    sinks: str | None = None  # tensor with a further score of each head, whose weight goes nowhere
    growth: Growth | None = None
    source: int | None = None  # the layer whose rows are attended to; None: they are the layer's own
    window: int = 0  # a token sees itself and the window-1 tokens before it; 0: all


class LatentCoreOf(Protocol[A, P_contra]):
    """Causal attention of all heads to one row a token: a latent, and the rotated key that all heads share."""

    def new_state(self, capacity: int) -> LayerState: ...

    def store(self, rows: A, cache: Cache, positions: P_contra) -> None:
        """rows [tokens, rank + rotary_dim]: rotated at their ends, and stored behind those seen."""
        ...

    def at_once(self, tokens: int) -> int:
        """How many of the tokens of a pass to attend with in one call, for the memory that their queries take."""
        ...

    def attend(self, queries: A, cache: Cache, positions: P_contra, at: int) -> A:
        """queries [tokens, heads * (qk_nope_head_dim + rotary_dim)], not rotated yet -> [tokens, heads * value_dim].

        They are those of the tokens from `at` of the pass, whose rows have been stored."""
        ...


class LatentState(TokenState, Generic[K]):
    """The rows of a layer, [room, width]."""

    def __init__(self, memory: MemoryOf[K, Array], width: int, capacity: int, *others: RowsOf[object]) -> None:
        """width: 0 where a layer attends to the rows of another; others: what is kept of each token besides."""
        rows = memory.rows(1, capacity, width)
        super().__init__(rows, *others, joined=bool(others))
        self.rows, self.room = rows.data, rows.room


LatentCore = LatentCoreOf[Array, Positions]


@dataclass(frozen=True, slots=True)
class LatentPart(Part[A, P, R, LatentCoreOf[A, P]]):
    """The last rotary_dim numbers of a row, and of each head's query, are rotated."""

    keys_values: str  # [heads * (qk_nope_head_dim + value_dim), rank], not quantised: for each head W_UK, then W_UV
    heads: LatentHeads
    layer: int


@dataclass(frozen=True, slots=True)
class LatentNames:
    """What a family calls the modules of a layer."""

    module: str = "self_attn"
    output: str = "o_proj"
    sinks: str | None = None  # tensor with a further score of each head, whose weight goes nowhere
    growth: str | None = None  # module with the numbers by which heads' queries grow with their position
    key_norm: str | None = None  # a norm of the key that all heads share, before it is rotated


@dataclass(frozen=True, slots=True)
class LatentGate:
    """sigmoid of what multiplies the outputs of heads.

    It has one number for each head ("heads") or for each number of their outputs ("values"); or q_b_proj makes of
    [norm(compressed), compressed] each head's query, and then such gates ("queries").
    """

    of: Literal["heads", "values", "queries"]
    name: str = "g_proj"  # of the projection that makes it


@dataclass(frozen=True, slots=True)
class LatentConfig:
    num_heads: int
    query_rank: int | None  # None: queries are not compressed
    rank: int  # of what is cached
    qk_nope_head_dim: int  # of a head's query and key, without positions
    rotary_dim: int  # of a head's query, and of the key that all heads share
    value_dim: int
    biased: bool
    gate: LatentGate | None = None
    eps: float = LATENT_EPS  # of the norms of latents
    latent_scale: float = 1.0  # multiplies latents behind their norm
    names: LatentNames = LatentNames()
    source: int | None = None  # an earlier layer, whose rows are attended to; None: the layer has its own

    def named(self, **names: Any) -> LatentConfig:
        """The same with changed fields of LatentNames."""
        return replace(self, names=replace(self.names, **names))

    @property
    def gate_projection(self) -> str | None:
        """The name of what makes gates of the hidden state."""
        return None if self.gate is None or self.gate.of == "queries" else self.gate.name

    # ---- moeinf.models.layers.assemble.Mixer

    @property
    def state_bytes(self) -> int:
        return 0

    @property
    def token_bytes(self) -> int:
        return 0

    @property
    def row_numbers(self) -> int:
        """How many numbers are cached of a token."""
        return self.rank + self.rotary_dim if self.source is None else 0

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        return latent_shapes(decoder, self, layer)

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return latent_workspace(decoder, self)

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> LatentAttention:
        return LatentAttention(layers, decoder, self, layer)


def parse_latent(
    f: Fields,
    *,
    interleaved: bool,
    norm_eps: float = 1e-6,
    also: tuple[str, ...] = (),
    partial: float = 1.0,
    rotated: bool = True,
    theta: float = 1e4,
    windowed: bool = False,
) -> tuple[DecoderConfig, LatentConfig]:
    """interleaved: how the family's rotary pairs lie; norm_eps, theta: its defaults; also: as `rope_of` takes it;
    partial: what partial_rotary_factor may say of heads whose last part is rotated. rotated: False where no part is.
    windowed: rows may be wider than those that a GPU attends to in all of a sequence.

    The decoder's attention is what the rows are attended to with.
    """
    rotary_dim = f.count("qk_rope_head_dim", minimum=2) if rotated else f.count("qk_rope_head_dim", 0, 0, 0)
    if rotated and f.count("head_dim", rotary_dim) < rotary_dim:
        raise CheckpointError(f"{f.said('head_dim')} is {f.get('head_dim')}, below qk_rope_head_dim {rotary_dim}")
    context_length = f.count("max_position_embeddings")
    rank, nope_dim = f.count("kv_lora_rank"), f.count("qk_nope_head_dim")
    if rank % 2:
        raise CheckpointError(f"{f.said('kv_lora_rank')} is {rank}; moeinf computes rows of an even size")
    f.only("partial_rotary_factor", 1.0, None)
    rope_fields(f).only("partial_rotary_factor", partial, None)
    rope = Rope(np.zeros(0, np.float32), interleaved=interleaved)
    if rotated:
        rope = rope_of(f, rotary_dim, theta, context_length, interleaved=interleaved, also=also)
    # yarn sharpens the scores besides (published code: softmax_scale * mscale * mscale)
    sharpened, r = (nope_dim + rotary_dim) ** -0.5, rope_fields(f)
    if r.get("mscale_all_dim"):
        sharpened *= mscale(r.number("factor"), r.number("mscale_all_dim")) ** 2
    width = rotary_dim if windowed else rank + rotary_dim
    decoder = parse_decoder(
        f, norm_eps=norm_eps, theta=1e4, rope=rope, num_kv_heads=1, head_dim=width, scores=Scores(sharpened)
    )
    f.present("q_lora_rank")
    query_rank = None if f.get("q_lora_rank") is None else f.count("q_lora_rank")
    return decoder, LatentConfig(
        decoder.attention.num_heads,
        query_rank,
        rank,
        nope_dim,
        rotary_dim,
        f.count("v_head_dim"),
        f.flag("attention_bias", False),
    )


def growth_of(module: str | None) -> Growth | None:
    """module: what the names of the tensors begin with; None: there are none."""
    return None if module is None else Growth(f"{module}.scale", f"{module}.bias")


def latent_shapes(decoder: DecoderConfig, c: LatentConfig, layer: int) -> Shapes:
    """Names and shapes of the tensors of a layer's attention."""
    hidden, heads = decoder.attention.hidden_size, c.num_heads
    one: Shapes = {}
    if c.source is None:
        one |= {"kv_a_proj_with_mqa.weight": (c.rank + c.rotary_dim, hidden), "kv_a_layernorm.weight": (c.rank,)}
    one |= {
        "kv_b_proj.weight": (heads * (c.qk_nope_head_dim + c.value_dim), c.rank),
        f"{c.names.output}.weight": (hidden, heads * c.value_dim),
    }
    if c.names.key_norm is not None:
        one[f"{c.names.key_norm}.weight"] = (c.rotary_dim,)
    if c.names.growth is not None:
        one |= {f"{c.names.growth}.scale": (heads,), f"{c.names.growth}.bias": (heads,)}
    if c.gate is not None and c.gate_projection is not None:
        one[f"{c.gate_projection}.weight"] = (heads * (c.value_dim if c.gate.of == "values" else 1), hidden)
    if c.names.sinks is not None:
        one[c.names.sinks] = (heads,)
    queries = heads * (c.qk_nope_head_dim + c.rotary_dim)
    if c.query_rank is None:
        one["q_proj.weight"] = (queries, hidden)
    else:
        one |= {
            "q_a_proj.weight": (c.query_rank, hidden),
            "q_a_layernorm.weight": (c.query_rank,),
            "q_b_proj.weight": (queries, c.query_rank),
        }
    if c.gate is not None and c.gate.of == "queries" and c.query_rank is not None:
        one["q_b_proj.weight"] = (queries + heads * c.value_dim, 2 * c.query_rank)
    if c.biased:
        biased = [name for name in (*_BIASED, c.names.output) if f"{name}.weight" in one]
        one |= {f"{name}.bias": one[f"{name}.weight"][:1] for name in biased}
    return {f"{_prefix(decoder, c, layer)}{name}": shape for name, shape in one.items()}


def latent_workspace(decoder: DecoderConfig, c: LatentConfig) -> Workspace:
    """Input and output, rows, queries and mixtures of a pass; what is taken into the latents' space is bounded."""
    row, head = c.rank + c.rotary_dim, c.qk_nope_head_dim + c.rotary_dim + 2 * c.value_dim
    head += 2 * c.value_dim if c.gate is not None and c.gate.of == "values" else 0
    return Workspace(
        token=2 * decoder.attention.hidden_size + 3 * row + c.num_heads * head,
        fixed=INSIDE,
        inputs=max(c.query_rank or 0, c.num_heads * c.value_dim),
        layers=frozenset([LatentSizes(c.num_heads, c.rank, c.qk_nope_head_dim, c.value_dim, c.rotary_dim)]),
    )


# The ends of names, as DecoderFamily has them: kv_b is multiplied by head and from both sides, and so not quantised.
LATENT_MATRICES: tuple[str, ...] = ("kv_a_proj_with_mqa.weight",)
NO_LATENT_MATRICES: tuple[str, ...] = ("kv_b_proj.weight",)


class LatentAttention(OneByOne[Array, Positions]):
    """moeinf.models.layers.protocol.Attention."""

    def __init__(self, layers: Layers, decoder: DecoderConfig, c: LatentConfig, layer: int) -> None:
        a, prefix = decoder.attention_of(layer), _prefix(decoder, c, layer)
        assert a.rope is not None
        weights = layers.weights
        self._config, self._math, self._replaces = c, weights.math, decoder.replaces

        def linear(name: str) -> Callable[[Hidden], Hidden]:
            biased = c.biased and name in (*_BIASED, c.names.output)
            return weights.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if biased else None)

        self._norm = weights.norm(NormConfig(decoder.attention_site(layer).front, a.norm_eps))
        if c.query_rank is None:
            self._into: Callable[[Hidden], Hidden] = _unchanged
            self._query_norm: Callable[[Hidden], Hidden] = _unchanged
            self._expanded = linear("q_proj")
        else:
            self._into = linear("q_a_proj")
            self._query_norm = weights.norm(NormConfig(f"{prefix}q_a_layernorm.weight", c.eps))
            self._expanded = linear("q_b_proj")
        if c.source is None:
            self._rows = linear("kv_a_proj_with_mqa")
            self._latent_norm = weights.norm(NormConfig(f"{prefix}kv_a_layernorm.weight", c.eps))
        key_norm = None if c.names.key_norm is None else NormConfig(f"{prefix}{c.names.key_norm}.weight", c.eps)
        self._key_norm = weights.norm(key_norm)
        sinks = None if c.names.sinks is None else prefix + c.names.sinks
        growth = growth_of(None if c.names.growth is None else prefix + c.names.growth)
        heads = LatentHeads(
            c.num_heads,
            c.qk_nope_head_dim,
            a.rope,
            a.scale,
            a.scores.sharpening,
            sinks,
            growth,
            source=c.source,
            window=a.window,
        )
        self._core = self.make_core(layers, LatentPart(f"{prefix}kv_b_proj.weight", heads, layer))
        self._output = linear(c.names.output)
        self._gates = None if c.gate_projection is None else linear(c.gate_projection)

    def make_core(self, layers: Layers, latent: LatentPart[Array, Positions, object]) -> LatentCore:
        return layers.make(latent)

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        """What several sequences have few rows of goes through the matrices together, which are then read once."""
        core, sizes = self._core, [span.num_rows for span in spans]
        if len(spans) == 1 or any(core.at_once(size) < size for size in sizes):
            super().add_rows(x, spans)
            return
        hidden = self._norm(x)
        if (rows := self._latent_rows(hidden)) is not None:
            for span in spans:
                core.store(rows[span.rows], span.cache, span.positions)
        _, queries, gates = self._queries(hidden)
        mixed = [core.attend(queries[span.rows], span.cache, span.positions, 0) for span in spans]
        self._leave(x, self._output(self._gated(self._math.concatenate(mixed, 0), gates)))

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        tokens, hidden = len(x), self._norm(x)
        self._store(hidden, cache, positions)
        size = self._core.at_once(tokens)
        for at in range(0, tokens, size):
            _, queries, gates = self._queries(hidden[at : at + size])
            out = self._output(self._gated(self._core.attend(queries, cache, positions, at), gates))
            self._leave(x[at : at + size], out)

    def _leave(self, x: Hidden, out: Hidden) -> None:
        """x: what the layer was given, of the same tokens as what it gives."""
        if self._replaces:
            x[...] = out
        else:
            x += out

    def _queries(self, hidden: Hidden) -> tuple[Hidden, Hidden, Hidden | None]:
        """Compressed queries, where they are compressed; the queries; and what the gates of heads are made of,
        [tokens, heads, 1 or value_dim]."""
        c, tokens, raw = self._config, len(hidden), self._into(hidden)
        compressed = self._query_norm(raw)
        if c.gate is not None and c.gate.of == "queries":
            both = self._expanded(self._math.concatenate([compressed, raw], 1)).reshape(tokens, c.num_heads, -1)
            own = c.qk_nope_head_dim + c.rotary_dim
            queries = both[:, :, :own].reshape(tokens, c.num_heads * own)
            return compressed, queries * 1.0, both[:, :, own:]  # a copy: of one head they would be a view with gaps
        gates = None if self._gates is None else self._gates(hidden).reshape(tokens, c.num_heads, -1)
        return compressed, self._expanded(compressed), gates

    def _gated(self, mixed: Hidden, gates: Hidden | None) -> Hidden:
        if gates is None:
            return mixed
        heads = mixed.reshape(len(mixed), self._config.num_heads, self._config.value_dim)
        return (heads * self._math.sigmoid(gates)).reshape(*mixed.shape)

    def _store(self, hidden: Hidden, cache: Cache, positions: Positions) -> None:
        if (rows := self._latent_rows(hidden)) is not None:
            self._core.store(rows, cache, positions)

    def _latent_rows(self, hidden: Hidden) -> Hidden | None:
        """[tokens, rank + rotary_dim]: what is kept of each token, not rotated yet; None where another layer's is."""
        if self._config.source is not None:
            return None
        rows, rank = self._rows(hidden), self._config.rank
        latents = self._latent_norm(rows[:, :rank])
        latents = latents if self._config.latent_scale == 1.0 else latents * self._config.latent_scale
        keys = self._key_norm(rows[:, rank:])
        return self._math.concatenate([latents, keys], 1)


def _unchanged(hidden: Hidden) -> Hidden:
    return hidden


def _prefix(decoder: DecoderConfig, c: LatentConfig, layer: int) -> str:
    return f"{decoder.module(layer, c.names.module)}."
