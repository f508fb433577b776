"""In which order experts are prefetched."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.types import FloatArray

EPS: Final = 1e-6  # orders experts of likelihood zero by layer; 1e-2 measures worse (docs/lab/policies.md)


def layer_proximity(num_layers: int) -> FloatArray:
    """(1 - 1/L, 1 - 2/L, ...) [L - 1] for the layers behind the one that runs (arXiv 2401.14361 v3, 4.5)."""
    proximity: FloatArray = 1 - np.arange(1, num_layers) / num_layers
    return proximity


def prefetch_priority(likelihood: FloatArray, proximity: FloatArray, eps: float = EPS) -> FloatArray:
    """Priorities [n, E] of the n layers behind layer l, which was routed: (P[i,j] + eps) * (1 - (i - l)/L).

    Source: arXiv 2401.14361 v1, Algorithm 1. The factor is the one of v3, 4.5; predictors leave it to this function,
    so that it is applied once.
    """
    return (likelihood + eps) * proximity[: len(likelihood), None]
