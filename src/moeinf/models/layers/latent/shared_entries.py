"""Attention to a window of tokens and to entries that several layers share (DeepSeek-V4.1).

It is that of compressed.py, but that few layers make entries, which all layers up to the next of these see. Entries
have no learned bias of their members' places, and where they stand for one token each they are projected, and nothing
else. Index keys are made of entries, k = norm(W e), before positions rotate these. Some layers choose entries by an
indexer; the others see what the last of them has chosen. One may leave candidates, blocks of entries, to the layers
behind it, which choose among them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.compressed import CompressedAttention, CompressedConfig, CompressedHeads, RawPools
from moeinf.models.layers.latent.indexed import Selection
from moeinf.models.layers.protocol import Attention, Layers, Positions, Weights


class SharedPools:
    """What makes entries, and their index keys of these."""

    def __init__(self, weights: Weights, prefix: str, heads: CompressedHeads, eps: float) -> None:
        """prefix: of the layer's tensors."""
        self._math, self._heads = weights.math, heads
        made = ("wkv", "wgate") if heads.rate > 1 else ("wkv",)
        self._raw = [weights.linear(f"{prefix}compressor.{name}.weight") for name in made]
        self._key = weights.linear(f"{prefix}indexer.wk.weight")
        self._norm, self._key_norm = (
            weights.norm(NormConfig(f"{prefix}{name}.weight", eps)) for name in ("compressor.norm", "indexer.k_norm")
        )

    def raw(self, hidden: Hidden) -> Array:
        return self._math.concatenate([project(hidden) for project in self._raw], 1)

    def entries(self, raw: Array, windows: Array) -> list[Array]:
        made = self._norm(self._pooled(raw))
        return [made, self._key_norm(self._key(made))]

    def _pooled(self, raw: Array) -> Array:
        h, math = self._heads, self._math
        if h.rate == 1:
            return raw
        members = raw.reshape(-1, h.rate, raw.shape[1])
        numbers, gates = members[:, :, : h.head_dim], members[:, :, h.head_dim :]
        shares = math.exp(gates - math.max(gates, 1, True))
        return math.sum(numbers * shares, 1, False) / math.sum(shares, 1, False)


@dataclass(frozen=True, slots=True)
class SharedConfig(CompressedConfig):
    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        heads, prefix = self.heads, decoder.attention_site(layer).prefix
        names = CompressedConfig.shapes(self, decoder, layer)
        if heads.has_own:
            assert heads.index is not None
            made = ("wkv", "wgate") if heads.rate > 1 else ("wkv",)
            names |= {f"{prefix}compressor.{name}.weight": (heads.head_dim, self.hidden_size) for name in made}
            names[f"{prefix}compressor.norm.weight"] = (heads.head_dim,)
            names[f"{prefix}indexer.wk.weight"] = (heads.index.head_dim, heads.head_dim)
            names[f"{prefix}indexer.k_norm.weight"] = (heads.index.head_dim,)
        return names

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> SharedAttention:
        sources = sum(isinstance(each, SharedAttention) and each.has_entries for each in before)
        found = (each.selection for each in before if isinstance(each, SharedAttention))
        number = decoder.num_layers + sources - (0 if self.heads.has_own else 1)
        return SharedAttention(layers, self, decoder.attention_site(layer), number, next(found, Selection()))


class SharedAttention(CompressedAttention):
    """moeinf.models.layers.protocol.Attention. Layers of one model share a Selection."""

    def __init__(self, layers: Layers, c: SharedConfig, site: AttentionSite, number: int, selection: Selection) -> None:
        """number: of the state in the cache that keeps the entries which the layer sees, if it sees any."""
        super().__init__(layers, c, site, number)
        self.selection = selection

    def make_pools(self, weights: Weights, prefix: str) -> RawPools:
        return SharedPools(weights, prefix, self._heads, self._config.norm_eps)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        if self._heads.has_own:
            self.selection.parts[cache] = {}
        super().add_to(x, cache, positions)

    def chosen(self, part: Hidden, compressed: Hidden, cache: Cache, positions: Positions, at: int) -> object:
        h = self._heads
        if not h.rate:
            return None
        parts = self.selection.parts[cache]
        if h.index is not None:
            among = None if h.candidates is None or h.candidates.leaves else _choice(parts[at])[1]
            parts[at] = self.choice(part, compressed, cache, positions, at, among)
        return _choice(parts[at])[0]

    def scaled(self, queries: Array) -> Array:
        return queries


def _choice(found: object) -> tuple[object, object]:
    assert isinstance(found, tuple)
    return found
