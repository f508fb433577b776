"""Attention within a band around each patch, where one score of each head is added to that of the first patch (MiMo).

Of queries q_i and keys k_j with |i - j| <= reach, and sinks s_h of heads h:
    softmax_j(q_i . k_j / sqrt(size) + (s_h if j = 0))
"""

from __future__ import annotations

import numpy as np

from moeinf.types import Float32Array

_ROWS = 128  # queries at a time


def banded(q: Float32Array, k: Float32Array, v: Float32Array, sinks: Float32Array, reach: int) -> Float32Array:
    """q [patches, heads, size], k and v [patches, key heads, size], sinks [heads] -> [patches, heads * size]."""
    count, heads, size = q.shape
    shared = heads // k.shape[1]
    grouped = q.reshape(count, k.shape[1], shared, size).transpose(1, 2, 0, 3) * np.float32(size**-0.5)
    keys, values = k.transpose(1, 2, 0), v.transpose(1, 0, 2)  # [key heads, size, patches] and [.., patches, size]
    found = np.empty((count, heads, size), np.float32)
    places = np.arange(count)
    for start in range(0, count, _ROWS):
        end = min(start + _ROWS, count)
        seen = slice(max(0, start - reach), min(count, end + reach))
        scores = grouped[:, :, start:end] @ keys[:, None, :, seen]
        if seen.start == 0:
            scores[..., 0] += sinks.reshape(-1, shared, 1)
        far = np.abs(places[start:end, None] - places[seen]) > reach
        scores = np.where(far, np.float32(-np.inf), scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = weights @ values[:, None, seen]
        found[start:end] = mixed.transpose(2, 0, 1, 3).reshape(end - start, heads, size)
    return found.reshape(count, heads * size)


def turned_halves(x: Float32Array, angles: Float32Array) -> Float32Array:
    """x [patches, heads, size], whose pairs (i, i + half) turn by angles [patches, size / 2]."""
    first, second = np.split(x, 2, 2)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], 2)
