"""In which order experts are prefetched, and which of them under a budget."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf.types import FloatArray

EPS: Final = 1e-6  # orders experts of likelihood zero by layer; 1e-2 measures worse (docs/policies.md)


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


def select_prefetches(
    priorities: FloatArray, resident: npt.NDArray[np.bool_], budget: int, at_least: float = 0.0
) -> list[int]:
    """At most `budget` experts that are not `resident` [n, E] (nor in flight), highest priority first.

    Returned are their indices in priorities.ravel(). Only priorities above `at_least` (>= 0) count. Ties go to the
    lower layer, then to the lower expert.
    """
    wanted = np.where(resident, 0.0, priorities).ravel()
    chosen: list[int] = []
    while len(chosen) < min(budget, len(wanted)):  # a few times argmax beats any sort, and is stable
        best = int(wanted.argmax())
        if wanted[best] <= at_least:
            break
        wanted[best] = 0.0
        chosen.append(best)
    return chosen
