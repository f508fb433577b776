"""Which tokens a truncation leaves, and which of them is drawn, in a few passes over the vocabulary and without a sort.

A token's weight, e^(score - best score), is a float32, as scores are, and so are sums of many weights: probabilities
and the border of top_p are off by some 1e-6 of the whole at most.
"""

from __future__ import annotations

import math

import numpy as np

from moeinf.types import Float32Array, FloatArray, IntArray

_ROWS = 64  # that scores are seen as: the best of each column say how large the largest are at least
_LIKELIEST = 2048  # tokens among which top_p mostly ends
_LOWEST = np.float32(-80)  # e to that is nothing beside 1; from e^-88 on numbers take a CPU many times as long


def largest(scores: FloatArray | Float32Array, count: int) -> IntArray:
    """Indices of the `count` largest (of all, where there are fewer), ascending; of equals the first are taken."""
    if count >= len(scores):
        return np.arange(len(scores))
    near = np.flatnonzero(scores >= _floor(scores, count))
    found = scores[near]
    border = np.partition(found, -count)[-count]
    return near[_down_to(found, border, count - int(np.count_nonzero(found > border)))]


def truncated(scores: Float32Array, top_p: float, min_p: float) -> IntArray | None:
    """Ascending indices of the scores [n] that pass top_p and min_p, at least one; None: all do.

    top_p: the largest pass (of equals the first), until their weights reach this share of all.
    min_p: those pass whose weight is at least this share of the best one's.
    """
    kept = _leading(scores, top_p) if top_p < 1 else None
    if min_p > 0:
        passing = (scores if kept is None else scores[kept]) >= float(scores.max()) + math.log(min_p)
        kept = np.flatnonzero(passing) if kept is None else kept[passing]
    return kept


def draw(scores: Float32Array, temperature: float, uniform: float) -> int:
    """The index that `uniform`, in [0, 1), falls on where the indices share that range, in order, by their weights."""
    weights = _weights(scores, temperature)
    width = math.isqrt(len(weights))
    starts = np.arange(0, len(weights), width)
    ends = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)  # of rows; one of them is looked at closely
    target = uniform * float(ends[-1])
    row = int(np.searchsorted(ends, target, side="right"))
    before = float(ends[row - 1]) if row else 0.0
    sums = np.cumsum(weights[starts[row] : starts[row] + width], dtype=np.float64)
    return int(starts[row] + np.searchsorted(sums, min(target - before, np.nextafter(sums[-1], 0)), side="right"))


def _weights(scores: Float32Array, temperature: float = 1) -> Float32Array:
    weights: Float32Array = scores - scores.max()
    if temperature != 1:
        with np.errstate(over="ignore"):  # a tiny temperature makes all but the best -inf, and must not become 0
            weights /= np.float32(max(temperature, 1e-30))
    if weights.min() >= _LOWEST:
        return np.exp(weights, out=weights)
    np.maximum(weights, _LOWEST, out=weights)
    np.exp(weights, out=weights)
    weights -= np.exp(_LOWEST)  # so that what is below it weighs nothing
    return np.maximum(weights, 0, out=weights)


def _leading(scores: Float32Array, share: float) -> IntArray:
    """Ascending indices of the largest scores, of equals the first, up to the one whose weight takes their sum to
    `share` of all."""
    weights = _weights(scores)
    target = share * float(weights.sum())
    low, high, above = _floor(scores, _LIKELIEST), math.inf, 0.0
    near = np.flatnonzero(scores >= low)
    if weights[near].sum(dtype=np.float64) < target:
        low, high = _bracket(scores, weights, target)
        above = float(np.dot(weights, scores >= high))
        near = np.flatnonzero((scores >= low) & (scores < high))
    ranked = np.sort(scores[near])[::-1]
    reached = above + np.cumsum(np.exp(ranked.astype(np.float64) - float(scores.max())))
    last = min(int(np.searchsorted(reached, target)), len(ranked) - 1)
    num_equal = last + 1 - int(np.count_nonzero(ranked > ranked[last]))
    if high < math.inf:
        return _down_to(scores, ranked[last], num_equal)
    return near[_down_to(scores[near], ranked[last], num_equal)]


def _bracket(scores: Float32Array, weights: Float32Array, target: float) -> tuple[float, float]:
    """Two scores: the weights of all that are at least the first sum to `target`, of all that are at least the second
    they do not. Few lie between them, since a sample says where to look."""
    sample = np.sort(scores[::_ROWS])[::-1]
    reached = np.cumsum(np.exp(sample - sample[0]))
    guess = int(np.searchsorted(reached, target / float(weights.sum()) * reached[-1]))

    def suffices(at: int) -> bool:
        return float(np.dot(weights, scores >= sample[at])) >= target

    margin = math.isqrt(len(sample))
    first, last = guess - margin, guess + margin
    while first >= 0 and (first >= len(sample) or suffices(first)):
        first, last, margin = first - margin, first, 2 * margin
    margin = math.isqrt(len(sample))
    while last < len(sample) and not suffices(last):
        first, last, margin = last, last + margin, 2 * margin
    return (float(sample[last]) if last < len(sample) else -math.inf), (
        float(sample[first]) if first >= 0 else math.inf
    )


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
