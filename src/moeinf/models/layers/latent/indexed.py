"""Latent attention to a few positions, which an indexer chooses (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

A position has an index key k. A token has queries q_h and weights w_h of a few heads; to it, a position is worth

    sum_h w_h relu(q_h . k)

and it attends to the best `top_k` of the positions up to its own: where it has no more, to all of them. The published
code rounds queries and keys to FP8 behind a Hadamard transform, which changes no product: both are left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol
from weakref import WeakKeyDictionary

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A, Array, Hidden
from moeinf.models.layers.assemble import Mixer
from moeinf.models.layers.attention.token_rows import K, MemoryOf
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import Cache, LayerState, OneByOne
from moeinf.models.layers.latent.mla import (
    INSIDE,
    Growth,
    LatentAttention,
    LatentConfig,
    LatentCore,
    LatentCoreOf,
    LatentPart,
    LatentState,
    growth_of,
)
from moeinf.models.layers.protocol import Attention, Layers, P, P_contra, Part, Positions, R
from moeinf.types import IndexSizes, LatentSizes, Workspace


@dataclass(frozen=True, slots=True)
class IndexHeads:
    """The heads of an indexer."""

    num_heads: int
    head_dim: int
    top_k: int  # positions that a token attends to; of pools, without those behind the last whole one
    interleaved: bool  # how the pairs lie that positions rotate
    at_end: bool = False  # whether these lie at the end of a head, and not at its beginning
    pool: int = 0  # tokens that have one key and are chosen together, where these are more than one
    growth: Growth | None = None

    @property
    def kept(self) -> int:
        """Numbers of a token that keys are made of."""
        return 2 * self.head_dim if self.pool else self.head_dim

    @property
    def most(self) -> int:
        """Positions that a token attends to at most."""
        return self.top_k + max(self.pool - 1, 0)


class IndexedCoreOf(LatentCoreOf[A, P_contra], Protocol[A, P_contra]):
    """A LatentCore of which each token attends to a few positions that are chosen by index keys."""

    def store_keys(self, keys: A, cache: Cache, positions: P_contra) -> None:
        """keys [tokens, head_dim]: rotated, and stored behind those seen; or what keys of pools are made of."""
        ...

    def choose(self, queries: A, weights: A, cache: Cache, positions: P_contra, at: int) -> object:
        """queries [tokens, num_heads * head_dim], not rotated yet; weights [tokens, num_heads].

        They are those of the tokens from `at` of the pass, whose keys have been stored. Gives what attend_to takes."""
        ...

    def attend_to(self, queries: A, chosen: object, cache: Cache, positions: P_contra, at: int) -> A:
        """As `attend`, to what `choose` has chosen for these tokens."""
        ...


class IndexedState(LatentState[K], Generic[K, A]):
    """Beside the rows of a layer its index keys, or what those of pools are made of: float32 [capacity, of_keys]."""

    def __init__(self, memory: MemoryOf[K, A], width: int, capacity: int, of_keys: int) -> None:
        """of_keys: the width of keys; 0 where the layer has none of its own."""
        keys = memory.floats(capacity, of_keys)
        super().__init__(memory, width, capacity, keys)
        self.keys = keys.data


IndexedCore = IndexedCoreOf[Array, Positions]


@dataclass(frozen=True, slots=True)
class IndexedPart(Part[A, P, R, IndexedCoreOf[A, P]]):
    latent: LatentPart[A, P, R]
    index: IndexHeads
    keeps_keys: bool  # whether the layer has index keys of its own, as one does that chooses


@dataclass(frozen=True, slots=True)
class PooledPart(Part[A, P, R, IndexedCoreOf[A, P]]):
    """The same of a layer that has keys of pools; positions rotate neither these nor index queries."""

    latent: LatentPart[A, P, R]
    index: IndexHeads
    pooled: Callable[[A], A]  # what is stored of the tokens of pools [pools, tokens, kept] -> keys [pools, head_dim]


@dataclass(frozen=True, slots=True)
class IndexConfig:
    heads: IndexHeads
    chooses: bool = True  # whether the layer has an indexer; others attend to what the last of these has chosen
    key_eps: float = 1e-6  # of the norm of keys; the published code of most leaves it at this
    query_norm: str | None = None  # queries are made of this layer norm of hidden states, and not of compressed ones
    growth: str | None = None  # module with the numbers by which heads' queries grow with their position

    @staticmethod
    def parse(
        f: Fields,
        latent: LatentConfig,
        choosing: tuple[bool, ...],
        *,
        interleaved: bool,
        query_norm: str | None = None,
        growth: str | None = None,
    ) -> IndexConfig:
        """choosing: layers with an indexer; interleaved: how the pairs lie that positions rotate, at the beginning of a
        head."""
        if latent.query_rank is None and query_norm is None:
            raise CheckpointError(f"{f.where}: q_lora_rank is null; an indexer needs compressed queries")
        if not choosing[0]:
            raise CheckpointError(f"{f.where}: the first layer has no indexer (indexer_types, index_topk_pattern)")
        size = f.count("index_head_dim", 128)
        if size < latent.rotary_dim:
            raise CheckpointError(f"{f.where}: index_head_dim {size} is below qk_rope_head_dim {latent.rotary_dim}")
        f.present("index_n_heads", "index_topk")
        heads = IndexHeads(f.count("index_n_heads"), size, f.count("index_topk"), interleaved)
        return IndexConfig(heads, query_norm=query_norm, growth=growth)

    @property
    def token_bytes(self) -> int:
        """What the index keys of a token take in a layer, float32 in every type of cache."""
        key = self.heads.kept + (-(-self.heads.head_dim // self.heads.pool) if self.heads.pool else 0)
        return 4 * key * self.chooses


def _index_shapes(decoder: DecoderConfig, latent: LatentConfig, c: IndexConfig, layer: int) -> Shapes:
    """Names and shapes of the tensors of an indexer."""
    hidden, heads = decoder.attention.hidden_size, c.heads
    given = hidden if c.query_norm is not None else latent.query_rank or 0
    one: Shapes = {
        "wq_b.weight": (heads.num_heads * heads.head_dim, given),
        "wk.weight": (heads.head_dim, hidden),
        "k_norm.weight": (heads.head_dim,),
        "k_norm.bias": (heads.head_dim,),
        "weights_proj.weight": (heads.num_heads, hidden),
    }
    if c.query_norm is not None:
        one |= {f"{c.query_norm}.weight": (hidden,), f"{c.query_norm}.bias": (hidden,)}
    if c.growth is not None:
        one |= {f"{c.growth}.scale": (heads.num_heads,), f"{c.growth}.bias": (heads.num_heads,)}
    if c.heads.pool:
        one["index_kpool_compress_ape"] = (c.heads.pool, heads.head_dim)
        one["index_kpool_compress_gate"] = (heads.head_dim, hidden)
    return {_prefix(decoder, layer) + name: shape for name, shape in one.items()}


def _prefix(decoder: DecoderConfig, layer: int) -> str:
    return f"{decoder.prefix}layers.{layer}.self_attn.indexer."


# The ends of names, as DecoderFamily has them: queries and keys may be quantised, and not the weights, which are few.
INDEX_MATRICES: tuple[str, ...] = (".indexer.wq_b.weight", ".indexer.wk.weight")
NO_INDEX_MATRICES: tuple[str, ...] = (".indexer.weights_proj.weight",)


def _indexed_workspace(latent: Workspace, c: IndexConfig) -> Workspace:
    """Beside latent attention keys of a pass; of a part of it queries, and what they choose."""
    heads = c.heads
    part = 128 * (3 * heads.num_heads * heads.head_dim + 3 * heads.most)
    layers = {replace(each, most_chosen=heads.most) for each in latent.layers if isinstance(each, LatentSizes)}
    index = Workspace(token=4 * heads.head_dim, parts=part, fixed=INSIDE)
    return replace(latent | index, layers=frozenset({*layers, IndexSizes(heads.num_heads, heads.head_dim)}))


@dataclass(frozen=True, slots=True)
class IndexedLatent(Mixer):
    """Latent attention to what an indexer has chosen."""

    latent: LatentConfig
    index: IndexConfig

    @property
    def row_numbers(self) -> int:
        return self.latent.row_numbers

    @property
    def token_bytes(self) -> int:
        return self.index.token_bytes

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        own = _index_shapes(decoder, self.latent, self.index, layer) if self.index.chooses else {}
        return self.latent.shapes(decoder, layer) | own

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return _indexed_workspace(self.latent.workspace(decoder), self.index)

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> Attention:
        if self.index.heads.pool:
            return PooledLatentAttention(layers, decoder, self.latent, self.index, layer)
        found = (each.selection for each in before if isinstance(each, IndexedLatentAttention))
        selection, norm = next(found, Selection()), self.norm(layers, decoder, layer)
        return IndexedLatentAttention(layers, decoder, self.latent, self.index, layer, selection, norm)

    def norm(self, layers: Layers, decoder: DecoderConfig, layer: int) -> Callable[[Hidden], Hidden] | None:
        """The one in front, of a family that has its own."""
        return None


def indexed_layers(latent: LatentConfig, index: IndexConfig, choosing: Sequence[bool]) -> dict[int, Mixer]:
    """Of a decoder in which all layers have latent attention. choosing: those with an indexer."""
    return {i: IndexedLatent(latent, replace(index, chooses=own)) for i, own in enumerate(choosing)}


@dataclass(slots=True)
class Selection:
    """What the last layer with an indexer has chosen for the tokens of this pass.

    By the cache of their sequence, and the first token of each part."""

    parts: WeakKeyDictionary[Cache, dict[int, object]] = field(default_factory=WeakKeyDictionary)


class IndexedLatentAttention(LatentAttention):
    """moeinf.models.layers.protocol.Attention. Layers of one model share a Selection."""

    def __init__(
        self,
        layers: Layers,
        decoder: DecoderConfig,
        c: LatentConfig,
        index: IndexConfig,
        layer: int,
        shared: Selection,
        norm: Callable[[Hidden], Hidden] | None = None,
    ) -> None:
        """norm: the one in front, of a family that has its own."""
        prefix = _prefix(decoder, layer)
        growth = growth_of(None if index.growth is None else prefix + index.growth)
        self._index, self.selection, self._chooses = replace(index.heads, growth=growth), shared, index.chooses
        super().__init__(layers, decoder, c, layer)
        self._norm = norm or self._norm
        weights = layers.weights
        if self._chooses:
            own = index.query_norm
            own_norm = None if own is None else NormConfig(f"{prefix}{own}.weight", index.key_eps, "layer")
            self._index_norm = weights.norm(own_norm)
            self._index_queries, self._index_keys, self._index_weights = (
                weights.linear(f"{prefix}{name}.weight") for name in ("wq_b", "wk", "weights_proj")
            )
            self._index_key_norm = weights.norm(NormConfig(f"{prefix}k_norm.weight", index.key_eps, "layer"))

    def make_core(self, layers: Layers, latent: LatentPart[Array, Positions, object]) -> LatentCore:
        self._indexed = self.make_indexed(layers, latent)
        return self._indexed

    def make_indexed(self, layers: Layers, latent: LatentPart[Array, Positions, object]) -> IndexedCore:
        return layers.make(IndexedPart(latent, self._index, self._chooses))

    def keys(self, hidden: Hidden) -> Hidden:
        """What the core is given of tokens."""
        return self._index_key_norm(self._index_keys(hidden))

    def new_state(self, capacity: int) -> LayerState:
        return self._indexed.new_state(capacity)

    add_rows = OneByOne.add_rows  # each sequence has a choice of its own

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        core, tokens, hidden = self._indexed, len(x), self._norm(x)
        self._store(hidden, cache, positions)
        if self._chooses:
            core.store_keys(self.keys(hidden), cache, positions)
            self.selection.parts[cache] = {}
        size = core.at_once(tokens)
        scale = (self._index.num_heads * self._index.head_dim) ** -0.5
        for at in range(0, tokens, size):
            part = hidden[at : at + size]
            compressed, expanded, gates = self._queries(part)
            if self._chooses:
                queries = self._index_queries(self._index_norm(compressed))
                weights = self._index_weights(part) * scale
                self.selection.parts[cache][at] = core.choose(queries, weights, cache, positions, at)
            chosen = self.selection.parts[cache][at]
            mixed = core.attend_to(expanded, chosen, cache, positions, at)
            out = self._output(self._gated(mixed, gates))
            self._leave(x[at : at + size], out)


class PooledLatentAttention(IndexedLatentAttention):
    """The same where neighbouring positions have one key, a mixture of theirs by number, and are chosen together."""

    def __init__(self, layers: Layers, decoder: DecoderConfig, c: LatentConfig, index: IndexConfig, layer: int) -> None:
        weights, prefix = layers.weights, f"{_prefix(decoder, layer)}index_kpool_compress_"
        self._pool_gates, self._pool_bias = weights.linear(f"{prefix}gate"), weights.vector(f"{prefix}ape")
        self._pool_bias = self._pool_bias.reshape(index.heads.pool, -1)
        super().__init__(layers, decoder, c, index, layer, Selection())

    def keys(self, hidden: Hidden) -> Hidden:
        return self._math.concatenate([super().keys(hidden), self._pool_gates(hidden)], 1)

    def make_indexed(self, layers: Layers, latent: LatentPart[Array, Positions, object]) -> IndexedCore:
        return layers.make(PooledPart(latent, self._index, self._pooled))

    def _pooled(self, kept: Hidden) -> Hidden:
        """[pools, tokens, keys and gates] -> [pools, head_dim]."""
        math, size = self._math, self._index.head_dim
        gates = kept[:, :, size:] + self._pool_bias
        shares = math.exp(gates - math.max(gates, 1, True))
        return math.sum(kept[:, :, :size] * shares, 1, False) / math.sum(shares, 1, False)
