"""Attention of an answer to its source and to itself, of several beams side by side, on the CPU."""

from __future__ import annotations

import numpy as np

from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.math import NumpyMath
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.encoder_decoder import BeamsPart, attended, split_heads
from moeinf.models.layers.kv_cache import Cache
from moeinf.types import Float32Array, Routing


class HostBeams:
    """A BeamsPart. Pages are touched only as tokens arrive."""

    rewinds = True

    def __init__(self, memory: HostMemory, part: BeamsPart[Float32Array, Angles, Routing]) -> None:
        heads, shape = part.heads, (part.num_beams, part.heads.num_heads, part.capacity, part.heads.head_dim)
        self._math, self._num_heads, self._scale, self._bias = NumpyMath(), heads.num_heads, heads.scale, part.bias
        self._keys: Float32Array = np.empty(shape, np.float32)
        self._values: Float32Array = np.empty_like(self._keys)
        self._source: tuple[Float32Array, Float32Array] | None = None

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read

    def read_source(self, keys: Float32Array, values: Float32Array) -> None:
        self._source = split_heads(keys, 1, self._num_heads), split_heads(values, 1, self._num_heads)

    def keep(self, beams: np.ndarray, length: int) -> None:
        for cache in (self._keys, self._values):
            cache[: len(beams), :, :length] = cache[beams, :, :length]

    def over_source(self, q: Float32Array) -> Float32Array:
        assert self._source is not None, "a source is encoded first"
        mixture: Float32Array = attended(
            self._math, split_heads(q, 1, self._num_heads), *self._source, self._scale, None
        )
        return mixture

    def over_past(
        self, q: Float32Array, k: Float32Array, v: Float32Array, cache: Cache, positions: object
    ) -> Float32Array:
        beams, first = cache.beams, cache.length
        end = first + len(q) // beams
        q, k, v = (split_heads(part, beams, self._num_heads) for part in (q, k, v))
        keys, values = self._keys[:beams, :, :end], self._values[:beams, :, :end]
        keys[:, :, first:], values[:, :, first:] = k, v
        mixture: Float32Array = attended(self._math, q, keys, values, self._scale, self._bias_of(first, end))
        return mixture

    def _bias_of(self, first: int, end: int) -> Float32Array | None:
        """[heads or 1, tokens, end] of the tokens from `first`: minus infinity for what comes later."""
        if self._bias is None and end - first == 1:
            return None
        back = np.arange(first, end)[:, None] - np.arange(end)
        mask: Float32Array = np.where(back < 0, np.float32(-np.inf), np.float32(0))[None]
        return mask if self._bias is None else mask + self._bias[:, np.maximum(back, 0)]
