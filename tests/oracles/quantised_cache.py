"""Attention to keys and values that are kept in blocks of 32 whole numbers, the long way: all in float64."""

from __future__ import annotations

import numpy as np

from moeinf.types import ByteArray, Float32Array, FloatArray

_BLOCK = np.dtype([("scale", "<f2"), ("numbers", "i1", 32)])


def quantised(rows: Float32Array) -> ByteArray:
    """rows [..., n] as q8_0: each block of 32 is a scale, the 127th part of its largest number, and whole numbers."""
    blocks = rows.reshape(-1, 32)
    largest = np.abs(blocks).max(1, keepdims=True)
    out = np.zeros(len(blocks), _BLOCK)
    out["scale"] = largest[:, 0] / np.float32(127)
    out["numbers"] = np.rint(blocks * (np.float32(127) / np.maximum(largest, np.float32(1e-30))))
    return out.view(np.uint8).reshape(-1)


def widened(memory: ByteArray) -> FloatArray:
    """The numbers of whole blocks of q8_0, one behind the other."""
    blocks = memory.view(_BLOCK)
    numbers: FloatArray = blocks["scale"].astype(np.float64)[:, None] * blocks["numbers"]
    return numbers.reshape(-1)


def attended(queries: FloatArray, keys: FloatArray, values: FloatArray, window: int, sinks: FloatArray) -> FloatArray:
    """queries [tokens, heads, head_dim] of the last tokens; keys, values [kv_heads, positions, head_dim]; sinks
    [heads] -> [tokens, heads, head_dim]. A token sees the `window` tokens up to itself."""
    tokens, heads, head_dim = queries.shape
    out = np.empty_like(queries)
    for t in range(tokens):
        last = keys.shape[1] - tokens + t + 1
        for h in range(heads):
            seen = slice(max(0, last - window), last)
            group = h * len(keys) // heads
            scores = keys[group, seen] @ queries[t, h] / np.sqrt(head_dim)
            weights = np.exp(scores - max(scores.max(), sinks[h]))
            total = weights.sum() + np.exp(sinks[h] - max(scores.max(), sinks[h]))
            out[t, h] = weights @ values[group, seen] / total
    return out
