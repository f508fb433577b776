"""Attention to a window of tokens and to compressed ones (DeepSeek-V4; DeepseekV4Attention in transformers).

A token has one row, which is key and value of all heads. It sees the rows of the last `window` tokens, and entries,
each of which stands for `rate` tokens, the last of which is the token itself or lies before it. Of such tokens j, with
c_j and z_j that are projected of their hidden states and a bias b that is learned for each place among them,

    entry = norm(sum_j softmax(z_j + b_j) c_j)        by number, over the tokens

rotated at the position of the first of the tokens. Entries that overlap are made of twice as many numbers: a token has
one c and z for its own entry, and others for the next one. Where there is an indexer, entries have keys that are made
in the same way, and of more entries than top_k a token sees the best by sum_h w_h relu(q_h . k).

As values are rotated, too, the outputs are rotated back by the position of the query. They are projected in groups of
heads, and then together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from moeinf.models.layers.array_math import A, Array, Hidden
from moeinf.models.layers.assemble import Mixer
from moeinf.models.layers.attention.token_rows import MemoryOf, TokenState
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import Cache, LayerState, OneByOne
from moeinf.models.layers.latent.indexed import IndexHeads
from moeinf.models.layers.protocol import Attention, Layers, P, P_contra, Part, Positions, R, Weights
from moeinf.models.layers.rope import Rope
from moeinf.types import IndexSizes, LayerSizes, Workspace

SLICE = 64  # tokens whose queries exist at once


@dataclass(frozen=True, slots=True)
class Candidates:
    """Among which later layers choose entries: the best blocks of neighbouring ones, and the one of the newest."""

    count: int  # of blocks
    size: int  # entries of a block
    leaves: bool  # whether the layer chooses the blocks, for those behind it; else it chooses entries in them


@dataclass(frozen=True, slots=True)
class CompressedHeads:
    """The heads of attention to a window of tokens and to entries that stand for several each."""

    num_heads: int
    head_dim: int
    rope: Rope  # of the end of each query and row
    window: int  # tokens that a token sees, itself among them
    rate: int = 0  # tokens that an entry stands for; 0: there are none
    overlapping: bool = False  # an entry is made of the tokens before those, too
    index: IndexHeads | None = None  # by which entries are chosen; None: all are seen, or those of another layer
    makes: bool = True  # entries of its own, where there are any; else it sees those of a layer in front
    keys_of_entries: bool = False  # index keys are made of entries, and not as they are
    rounded: bool = False  # rows, entries, and index queries and keys are (rounding.py)
    candidates: Candidates | None = None

    @property
    def scale(self) -> float:
        """Of the scores."""
        return 1 / math.sqrt(self.head_dim)

    @property
    def has_own(self) -> bool:
        """Whether the layer makes entries."""
        return self.rate > 0 and self.makes

    @property
    def members(self) -> int:
        """Tokens that an entry is made of."""
        return 2 * self.rate if self.overlapping else self.rate

    @property
    def entry_dim(self) -> int:
        """Of an entry, and of its index key behind it."""
        return self.head_dim + (0 if self.index is None else self.index.head_dim)


Choice = tuple[object, object]  # entries, as `attend` takes them, and the candidates that are left to later layers


class PoolsOf(Protocol[A]):
    def entries(self, raw: A, windows: A) -> Sequence[A]:
        """What entries are made of and the numbers of their windows -> entries, and index keys."""
        ...


class CompressedCoreOf(Protocol[A, P_contra]):
    """Attention of all heads to the rows of a window and to entries, and what a layer keeps of both."""

    def new_state(self, capacity: int) -> LayerState:
        """Of the last tokens."""
        ...

    def new_entries(self, capacity: int) -> LayerState: ...

    def store(self, rows: A, raw: A | None, cache: Cache, positions: P_contra) -> None:
        """rows [tokens, head_dim], not rotated yet; raw: what entries are made of, where there are any."""
        ...

    def choose(self, queries: A, weights: A, cache: Cache, positions: P_contra, at: int, among: object) -> Choice:
        """As IndexedCore.choose; what is chosen are entries. among: candidates that an earlier layer has left."""
        ...

    def attend(self, queries: A, chosen: object, cache: Cache, positions: P_contra, at: int) -> A:
        """queries [tokens, heads, head_dim], not rotated yet -> the same of outputs, rotated back.

        They are those of the tokens from `at` of the pass, whose rows have been stored."""
        ...


class EntryState(TokenState, Generic[A]):
    """Entries with their index keys, in float32; each token has an equal share of the entry that stands for it."""

    def __init__(self, memory: MemoryOf[object, A], heads: CompressedHeads, capacity: int) -> None:
        count = -(-capacity // heads.rate)
        shares = memory.floats(count * heads.rate, entry_share(heads))
        super().__init__(shares)
        self.whole = shares.data.reshape(count, -1)
        self.entries, self.keys = self.whole[:, : heads.head_dim], self.whole[:, heads.head_dim : heads.entry_dim]


CompressedCore = CompressedCoreOf[Array, Positions]


@dataclass(frozen=True, slots=True)
class CompressedPart(Part[A, P, R, CompressedCoreOf[A, P]]):
    heads: CompressedHeads
    sinks: A  # [heads]: a further score of each head, whose weight goes nowhere
    pools: PoolsOf[A] | None  # where there are entries
    layer: int
    number: int  # of the state in the cache that keeps these


@dataclass(frozen=True, slots=True)
class CompressedConfig(Mixer):
    hidden_size: int
    heads: CompressedHeads
    query_rank: int
    groups: int  # of heads, whose outputs are projected together first
    group_rank: int
    norm_eps: float

    @property
    def group_rows(self) -> tuple[int, ...]:
        return (self.group_rank,) * self.groups

    @property
    def token_bytes(self) -> int:
        """What the layer's entries take of a token, float32 in every type of cache."""
        return 4 * entry_share(self.heads)

    @property
    def state_bytes(self) -> int:
        """What the layer keeps of a sequence of any length: what it was before a pass and after it."""
        return sum(2 * 4 * (rows * columns) for rows, columns in kept_shapes(self.heads))

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        return _compressed_shapes(self, decoder.attention_site(layer))

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return _compressed_workspace(self)

    def make(
        self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]
    ) -> CompressedAttention:
        """The states that keep entries come behind those of all layers."""
        number = decoder.num_layers + sum(isinstance(each, CompressedAttention) and each.has_entries for each in before)
        return CompressedAttention(layers, self, decoder.attention_site(layer), number)


def kept_shapes(heads: CompressedHeads) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the last tokens: their rows, and what entries are made of."""
    kept = max(heads.members - 1, 0) if heads.has_own else 0
    return (heads.window - 1, heads.head_dim), (kept, raw_columns(heads))


def raw_columns(heads: CompressedHeads) -> int:
    """Numbers of a token that entries and their keys are made of."""
    if not heads.has_own:
        return 0
    if heads.keys_of_entries:
        return heads.head_dim * (2 if heads.rate > 1 else 1)
    return heads.entry_dim * (4 if heads.overlapping else 2)


def entry_share(heads: CompressedHeads) -> int:
    """Numbers of an entry and its key for each token that it stands for."""
    return -(-heads.entry_dim // heads.rate) if heads.has_own else 0


class Pool:
    """Makes entries, or their index keys, of the hidden states of tokens."""

    def __init__(self, weights: Weights, prefix: str, heads: CompressedHeads, width: int, eps: float) -> None:
        """width: of an entry."""
        self._math, self._heads, self._width = weights.math, heads, width
        self._numbers, self._gates = (weights.linear(f"{prefix}{name}.weight") for name in ("wkv", "wgate"))
        self._bias = weights.vector(f"{prefix}ape").reshape(heads.rate, -1)
        self._norm = weights.norm(NormConfig(f"{prefix}norm.weight", eps))

    def raw(self, hidden: Hidden) -> Array:
        """[tokens, hidden] -> [tokens, columns]."""
        return self._math.concatenate([self._numbers(hidden), self._gates(hidden)], 1)

    @property
    def columns(self) -> int:
        return self._width * (4 if self._heads.overlapping else 2)

    def entries(self, raw: Array, windows: Array) -> Array:
        """raw [tokens, columns]: of the tokens of neighbouring windows, and where entries overlap of the window before
        them; windows [n]: their numbers. Gives [n, width], not rotated."""
        h, math, width = self._heads, self._math, self._width
        own = raw[h.members - h.rate :].reshape(-1, h.rate, self.columns)
        if not h.overlapping:
            return self._pooled(own[:, :, :width], own[:, :, width:] + self._bias)
        before = raw[: -h.rate].reshape(-1, h.rate, self.columns)
        there = (windows > 0)[:, None, None]  # nothing is before the first window
        first = math.where(there, before[:, :, 2 * width : 3 * width] + self._bias[:, :width], -float("inf"))
        gates = math.concatenate([first, own[:, :, 3 * width :] + self._bias[:, width:]], 1)
        return self._pooled(math.concatenate([before[:, :, :width], own[:, :, width : 2 * width]], 1), gates)

    def _pooled(self, numbers: Array, gates: Array) -> Array:
        """Both [n, members, width]."""
        math = self._math
        shares = math.exp(gates - math.max(gates, 1, True))
        return self._norm(math.sum(numbers * shares, 1, False) / math.sum(shares, 1, False))


class RawPools(PoolsOf[Array], Protocol):
    def raw(self, hidden: Hidden) -> Array:
        """[tokens, hidden] -> what entries are made of."""
        ...


class Pools:
    """What makes the entries of a layer, and their keys behind them."""

    def __init__(self, weights: Weights, prefix: str, heads: CompressedHeads, eps: float) -> None:
        """prefix: of the layer's tensors."""
        self._math = weights.math
        self._pools = [Pool(weights, f"{prefix}compressor.", heads, heads.head_dim, eps)]
        if heads.index is not None:
            self._pools.append(Pool(weights, f"{prefix}indexer.compressor.", heads, heads.index.head_dim, eps))

    def raw(self, hidden: Hidden) -> Array:
        return self._math.concatenate([pool.raw(hidden) for pool in self._pools], 1)

    def entries(self, raw: Array, windows: Array) -> list[Array]:
        """As of each pool."""
        found, at = [], 0
        for pool in self._pools:
            found.append(pool.entries(raw[:, at : at + pool.columns], windows))
            at += pool.columns
        return found


class CompressedAttention(OneByOne[Array, Positions]):
    """moeinf.models.layers.protocol.Attention, of a layer whose output replaces its input."""

    def __init__(self, layers: Layers, c: CompressedConfig, site: AttentionSite, number: int) -> None:
        """number: of the state in the cache that keeps the layer's entries, where it has any."""
        heads, prefix, weights = c.heads, site.prefix, layers.weights
        self._config, self._heads, self._math = c, heads, weights.math
        self._norm, self._query_norm, self._row_norm = (
            weights.norm(NormConfig(name, c.norm_eps))
            for name in (site.front, f"{prefix}q_norm.weight", f"{prefix}kv_norm.weight")
        )
        self._into, self._queries, self._rows, self._output = (
            weights.linear(f"{prefix}{name}.weight") for name in ("wq_a", "wq_b", "wkv", "wo_b")
        )
        self._of_groups = weights.linears(f"{prefix}wo_a.weight", c.group_rows)
        self._pools = self.make_pools(weights, prefix) if heads.has_own else None
        if heads.index is not None:
            self._index_queries = weights.linear(f"{prefix}indexer.wq_b.weight")
            self._index_weights = weights.linear(f"{prefix}indexer.weights_proj.weight")
        sinks = weights.vector(f"{prefix}attn_sink")
        self._core = layers.make(CompressedPart(heads, sinks, self._pools, site.layer, number))

    def make_pools(self, weights: Weights, prefix: str) -> RawPools:
        """prefix: of the layer's tensors."""
        return Pools(weights, prefix, self._heads, self._config.norm_eps)

    @property
    def has_entries(self) -> bool:
        """Of its own."""
        return self._pools is not None

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def new_entries(self, capacity: int) -> LayerState:
        return self._core.new_entries(capacity)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        c, hidden = self._config, self._norm(x)
        raw = None if self._pools is None else self._pools.raw(hidden)
        self._core.store(self._row_norm(self._rows(hidden)), raw, cache, positions)
        for at in range(0, len(x), SLICE):
            part = hidden[at : at + SLICE]
            compressed = self._query_norm(self._into(part))
            chosen = self.chosen(part, compressed, cache, positions, at)
            queries = self.scaled(self._queries(compressed).reshape(len(part), -1, self._heads.head_dim))
            mixed = self._core.attend(queries, chosen, cache, positions, at).reshape(len(part), c.groups, -1)
            grouped = [project(mixed[:, g] * 1.0) for g, project in enumerate(self._of_groups)]
            x[at : at + SLICE] = self._output(self._math.concatenate(grouped, 1))

    def chosen(self, part: Hidden, compressed: Hidden, cache: Cache, positions: Positions, at: int) -> object:
        """The entries of tokens from `at` of the pass; compressed: what queries are made of."""
        return None if self._heads.index is None else self.choice(part, compressed, cache, positions, at, None)[0]

    def choice(
        self, part: Hidden, compressed: Hidden, cache: Cache, positions: Positions, at: int, among: object
    ) -> Choice:
        """By the layer's indexer."""
        index = self._heads.index
        assert index is not None
        weights = self._index_weights(part) * (index.num_heads * index.head_dim) ** -0.5
        return self._core.choose(self._index_queries(compressed), weights, cache, positions, at, among)

    def scaled(self, queries: Array) -> Array:
        """[tokens, heads, head_dim], each head divided by its RMS."""
        mean = self._math.sum(queries * queries, -1, True) * (1 / self._heads.head_dim)
        return queries * (mean + self._config.norm_eps) ** -0.5


def _compressed_shapes(c: CompressedConfig, site: AttentionSite) -> Shapes:
    """Names and shapes of the tensors of a layer."""
    heads, hidden, prefix = c.heads, c.hidden_size, site.prefix
    queries = heads.num_heads * heads.head_dim
    shapes: Shapes = {
        f"{prefix}wq_a.weight": (c.query_rank, hidden),
        f"{prefix}q_norm.weight": (c.query_rank,),
        f"{prefix}wq_b.weight": (queries, c.query_rank),
        f"{prefix}wkv.weight": (heads.head_dim, hidden),
        f"{prefix}kv_norm.weight": (heads.head_dim,),
        f"{prefix}wo_a.weight": (c.groups * c.group_rank, queries // c.groups),
        f"{prefix}wo_b.weight": (hidden, c.groups * c.group_rank),
        f"{prefix}attn_sink": (heads.num_heads,),
    }
    if heads.rate and not heads.keys_of_entries:
        shapes |= _pool_shapes(c, heads, f"{prefix}compressor.", heads.head_dim)
    if heads.index is not None:
        index = f"{prefix}indexer."
        if not heads.keys_of_entries:
            shapes |= _pool_shapes(c, heads, f"{index}compressor.", heads.index.head_dim)
        shapes[f"{index}wq_b.weight"] = (heads.index.num_heads * heads.index.head_dim, c.query_rank)
        shapes[f"{index}weights_proj.weight"] = (heads.index.num_heads, hidden)
    return shapes


def _pool_shapes(c: CompressedConfig, heads: CompressedHeads, prefix: str, width: int) -> Shapes:
    columns = width * (2 if heads.overlapping else 1)
    return {
        f"{prefix}wkv.weight": (columns, c.hidden_size),
        f"{prefix}wgate.weight": (columns, c.hidden_size),
        f"{prefix}ape": (heads.rate, columns),
        f"{prefix}norm.weight": (width,),
    }


MATRICES = (
    ".wq_a.weight",
    ".wq_b.weight",
    ".wkv.weight",
    ".wo_a.weight",
    ".wo_b.weight",
    ".wgate.weight",
    ".wk.weight",
)


def _compressed_workspace(c: CompressedConfig) -> Workspace:
    """Of a pass what the cache and entries are made of; of a slice queries, outputs, what they see and its scores."""
    h = c.heads
    index = (0, 0, 0) if h.index is None else (h.index.num_heads, h.index.head_dim, h.index.top_k)
    token = 3 * c.hidden_size + 4 * h.head_dim + 4 * raw_columns(h)
    queries = 5 * h.num_heads * h.head_dim + 3 * index[0] * index[1] + c.hidden_size + c.query_rank
    slices = SLICE * queries + 4 * (h.window + index[2]) * (h.head_dim + h.num_heads)
    layers = frozenset[LayerSizes]([] if h.index is None else [IndexSizes(*index[:2])])
    return Workspace(token=token, parts=slices, fixed=FIXED, inputs=h.num_heads * h.head_dim, layers=layers)


FIXED = 1 << 22  # numbers that exist at once on a GPU
