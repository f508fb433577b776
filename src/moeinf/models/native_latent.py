"""What multi-head latent attention (mla.py) needs of the CPU: rows that are key and value at once, products by head."""

from __future__ import annotations

from typing import cast

import numpy as np

from moeinf import _native
from moeinf.models.cache import Cache
from moeinf.models.rope import Rope
from moeinf.models.weights import StoredTensor
from moeinf.types import DTYPE_BYTES, ByteArray, DType, Float32Array

Angles = tuple[Float32Array, Float32Array]  # cos and sin [tokens, rotary_dim / 2]

_NUMBERS = 1 << 21  # of queries, and of scores, that exist at once: 8 MiB each
_POSITIONS = 512  # whose rows are widened at once: 1 MiB of them, which the second-level cache holds


class NativeHeadMatrices:
    """moeinf.models.layers.HeadMatrices: one native product a head, of the weights as they are stored."""

    def __init__(self, kernels: _native.Kernels, tensor: StoredTensor, num_heads: int) -> None:
        assert tensor.format in DTYPE_BYTES, "the plan leaves out of `matrices` what is taken by head"
        self._kernels, self._format = kernels, cast(DType, tensor.format)
        kind = np.dtype(f"u{DTYPE_BYTES[self._format]}")
        self._heads = tensor.data.view(kind).reshape(num_heads, -1, tensor.shape[1])

    def rows(self, first: int, last: int) -> NativeHeadProducts:
        return NativeHeadProducts(self._kernels, self._format, self._heads[:, first:last])

    def columns(self, first: int, last: int) -> NativeHeadProducts:
        """A copy, transposed: the kernels multiply by rows."""
        return NativeHeadProducts(self._kernels, self._format, self._heads[:, first:last].transpose(0, 2, 1))


class NativeHeadProducts:
    """x [heads, tokens, cols] -> [heads, tokens, rows]."""

    def __init__(self, kernels: _native.Kernels, format: DType, weights: np.ndarray) -> None:
        """weights [heads, rows, cols], as unsigned numbers of the format's width."""
        self._kernels = kernels
        self._rows = weights.shape[1]
        self._matrices = [_native.Matrix(np.ascontiguousarray(head).reshape(-1).view(np.uint8), format, *head.shape)
                          for head in weights]

    def __call__(self, x: Float32Array) -> Float32Array:
        x = np.ascontiguousarray(x)
        out = np.empty((*x.shape[:2], self._rows), np.float32)
        for head, matrix in enumerate(self._matrices):
            self._kernels.linear(x[head], matrix, out[head])
        return out


class LatentState:
    """The bytes of [capacity, width] in `format`; pages are touched only as tokens arrive."""

    rewinds = True

    def __init__(self, width: int, capacity: int, dtype: DType) -> None:
        self.data: ByteArray = np.empty(capacity * width * DTYPE_BYTES[dtype], np.uint8)

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read


class NativeLatentCore:
    """moeinf.models.layers.LatentCore."""

    def __init__(self, kernels: _native.Kernels, dtype: DType, num_heads: int, width: int, rope: Rope, scale: float,
                 layer: int) -> None:
        self._kernels, self._dtype, self._layer = kernels, dtype, layer
        self._num_heads, self._width, self._rope, self._scale = num_heads, width, rope, np.float32(scale)

    def new_state(self, capacity: int) -> LatentState:
        return LatentState(self._width, capacity, self._dtype)

    def store(self, rows: Float32Array, cache: Cache, places: Angles) -> None:
        row_bytes = self._width * DTYPE_BYTES[self._dtype]
        state: LatentState = cache.states[self._layer]
        at = cache.length * row_bytes
        narrow = _narrowed(self._turned(rows[:, None], places)[:, 0], self._dtype)
        state.data[at : at + len(rows) * row_bytes] = narrow.reshape(-1).view(np.uint8)

    def at_once(self, length: int) -> int:
        return max(1, _NUMBERS // (self._num_heads * max(length, self._width)))

    def mix(self, queries: Float32Array, cache: Cache, places: Angles, at: int) -> Float32Array:
        tokens, heads = len(queries), self._num_heads
        first, last = cache.length + at, cache.length + at + tokens
        turned = self._turned(queries, (places[0][at : at + tokens], places[1][at : at + tokens]))
        state: LatentState = cache.states[self._layer]
        data = state.data[: last * self._width * DTYPE_BYTES[self._dtype]]
        scores = np.empty((tokens * heads, last), np.float32)  # the rows as a matrix, multiplied as they are stored
        rows = _native.Matrix(data, self._dtype, last, self._width)
        self._kernels.linear((turned * self._scale).reshape(tokens * heads, self._width), rows, scores)
        unseen = np.triu(np.ones((tokens, tokens), bool), 1)[:, None]
        behind = scores.reshape(tokens, heads, last)[:, :, first:]
        np.copyto(behind, np.float32(-np.inf), where=unseen)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        rank = self._width - self._rope.rotary_dim
        mixed = np.zeros((tokens * heads, rank), np.float32)
        latents = data.view(_KINDS[self._dtype]).reshape(last, self._width)[:, :rank]
        for start in range(0, last, _POSITIONS):
            end = start + _POSITIONS
            mixed += scores[:, start:end] @ _widened(latents[start:end], self._dtype)
        mixed /= scores.sum(-1, keepdims=True)
        return mixed.reshape(tokens, heads, rank)

    def _turned(self, x: Float32Array, places: Angles) -> Float32Array:
        """x [tokens, heads, width], the last rotary_dim of each head turned."""
        cos, sin = places[0][:, None], places[1][:, None]
        rank, half = self._width - self._rope.rotary_dim, self._rope.rotary_dim // 2
        interleaved = self._rope.interleaved
        left = x[..., rank::2] if interleaved else x[..., rank : rank + half]
        right = x[..., rank + 1 :: 2] if interleaved else x[..., rank + half :]
        return np.concatenate([x[..., :rank], left * cos - right * sin, right * cos + left * sin], -1)


_KINDS = {"bf16": np.uint16, "f16": np.float16, "f32": np.float32}


def _narrowed(x: Float32Array, dtype: DType) -> np.ndarray:
    if dtype != "bf16":
        return x.astype(_KINDS[dtype])
    bits: np.ndarray = np.ascontiguousarray(x).view(np.uint32)  # rounded to nearest, ties to even
    bits = bits + np.uint32(0x7FFF) + (bits >> 16 & 1) >> 16
    return bits.astype(np.uint16)


def _widened(x: np.ndarray, dtype: DType) -> Float32Array:
    if dtype == "bf16":  # bfloat16 is the upper half of a float32
        x = np.left_shift(x, 16, dtype=np.uint32).view(np.float32)
    wide: Float32Array = x.astype(np.float32, copy=False)
    return wide
