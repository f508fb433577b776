"""The largest of many scores, in a few passes over them and without a sort."""

from __future__ import annotations

import math

import numpy as np

from moeinf.types import Float32Array, FloatArray, IntArray

_ROWS = 64  # that scores are seen as: the best of each column say how large the largest are at least


def largest(scores: FloatArray | Float32Array, count: int) -> IntArray:
    """Indices of the `count` largest (of all, where there are fewer), ascending; of equals the first are taken."""
    if count >= len(scores):
        return np.arange(len(scores))
    near = np.flatnonzero(scores >= _floor(scores, count))
    found = scores[near]
    border = np.partition(found, -count)[-count]
    return near[_down_to(found, border, count - int(np.count_nonzero(found > border)))]


def largest_and_equals(scores: Float32Array, count: int) -> IntArray:
    """As `largest`, and with all that equal the last of them: what transformers' and vLLM's top_k keeps."""
    near = np.flatnonzero(scores >= _floor(scores, count))
    found = scores[near]
    kept: IntArray = near[found >= np.partition(found, -count)[-count]]
    return kept


def _floor(scores: FloatArray | Float32Array, count: int) -> float:
    """A score that at least `count` reach, and not many more: the `count`-th of the best of each column."""
    columns = len(scores) // _ROWS
    if count >= columns:
        return float(np.partition(scores, -count)[-count]) if count < len(scores) else -math.inf
    best = scores[: columns * _ROWS].reshape(_ROWS, columns).max(0)
    return float(np.partition(best, -count)[-count])


def _down_to(scores: FloatArray | Float32Array, border: float, num_equal: int) -> IntArray:
    """Ascending indices of what is larger than `border` and of the first num_equal that equal it."""
    found: IntArray = np.flatnonzero(scores >= border)
    equal = np.flatnonzero(scores[found] == border)
    return found if num_equal == len(equal) else np.delete(found, equal[num_equal:])
