"""Attention without a causal mask of its own, spelled out: softmax(scale * q keys^T + bias) values."""

from __future__ import annotations

import numpy as np

from moeinf.models.layers.array_math import Array, ArrayMath

QUERIES_AT_ONCE = 128  # of a source: bounds what their scores take


def split_heads(x: Array, beams: int, num_heads: int) -> Array:
    """[beams * tokens, heads * head_dim] -> [beams, heads, tokens, head_dim]"""
    return x.reshape(beams, len(x) // beams, num_heads, -1).swapaxes(1, 2)


def attended(math: ArrayMath, q: Array, keys: Array, values: Array, scale: float, bias: Array | None) -> Array:
    """softmax(scale * q keys^T + bias) values, [beams * tokens, heads * head_dim].

    q [beams, heads, tokens, head_dim]; keys, values [beams or 1, heads, places, head_dim]; bias [heads or 1, tokens,
    places].
    """
    parts = []
    for start in range(0, q.shape[2], QUERIES_AT_ONCE):
        scores = (q[:, :, start : start + QUERIES_AT_ONCE] @ keys.swapaxes(-1, -2)) * np.float32(scale)
        if bias is not None:
            scores = scores + bias[:, start : start + QUERIES_AT_ONCE]
        parts.append(math.softmax(scores) @ values)
    mixture = math.concatenate(parts, 2).swapaxes(1, 2)  # [beams, tokens, heads, head_dim]
    return mixture.reshape(q.shape[0] * q.shape[2], -1)
