"""Locally typical tokens: those that surprise about as much as the next token is expected to."""

from __future__ import annotations

import numpy as np

from moeinf.types import Float32Array, IntArray


def typical(scores: Float32Array, temperature: float, share: float) -> IntArray:
    """Ascending indices of the scores whose -log p is nearest to its mean, until their p add up to `share`.

    At least one. p: the softmax at the temperature of the scores [choices]; one at least is finite, others have no p.
    """
    choices = np.flatnonzero(np.isfinite(scores))
    logs = scores[choices].astype(np.float64)
    with np.errstate(over="ignore"):
        logs = (logs - logs.max()) / max(temperature, 1e-30)
    logs = np.maximum(logs - np.log(np.exp(logs).sum()), -1e300)
    chances = np.exp(logs)
    surprise = np.abs(-logs + (chances * logs).sum())
    order = np.argsort(surprise, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(chances[order]), share)) + 1]
    found: IntArray = np.sort(choices[kept])
    return found
