"""In which order experts are prefetched, and which of them under a budget."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf.types import ExpertId, FloatArray

EPS: Final = 1e-6  # orders experts of likelihood zero by layer; 1e-2 measures worse (docs/policies.md)


def layer_proximity(num_layers: int, layer: int) -> FloatArray:
    """1 - (i - layer)/L for the layers i > layer [L]; 0 for those that have run (arXiv 2401.14361 v3, 4.5)."""
    ahead = np.arange(num_layers) - layer
    proximity: FloatArray = np.where(ahead > 0, 1 - ahead / num_layers, 0.0)
    return proximity


def prefetch_priority(likelihood: FloatArray, layer: int, eps: float = EPS) -> FloatArray:
    """Priorities [L, E] after `layer` was routed: (P[i,j] + eps) * (1 - (i - layer)/L), zero for i <= layer.

    Source: arXiv 2401.14361 v1, Algorithm 1. The factor is the one of v3, 4.5; predictors leave it to this function,
    so that it is applied once.
    """
    return (likelihood + eps) * layer_proximity(len(likelihood), layer)[:, None]


def select_prefetches(
    priorities: FloatArray, resident: npt.NDArray[np.bool_], budget: int, at_least: float = 0.0
) -> list[ExpertId]:
    """At most `budget` experts that are not `resident` [L, E] (nor in flight), highest priority first.

    Only priorities above `at_least` (>= 0) count. Ties go to the lower layer, then to the lower expert.
    """
    wanted = np.where(resident, 0.0, priorities).ravel()
    chosen: list[ExpertId] = []
    while len(chosen) < budget:  # a few times argmax beats any sort, and is stable
        best = int(wanted.argmax())
        if wanted[best] <= at_least:
            break
        wanted[best] = 0.0
        chosen.append(ExpertId(*divmod(best, priorities.shape[1])))
    return chosen
