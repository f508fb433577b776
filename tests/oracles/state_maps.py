"""What maps say of states, number by number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from moeinf.types import FloatArray, MoeShape


def slow_likelihoods(weights: Mapping[str, Any], shape: MoeShape, layer: int, rows: Any) -> FloatArray:
    """[layers from `layer` on, at most 3, E]: the mean over states `rows` [tokens, hidden], not scaled."""
    reach, experts = min(3, shape.num_layers - layer), shape.num_experts
    likely = np.zeros((reach, experts))
    for row in rows.tolist():
        scale = math.sqrt(sum(value * value for value in row) / len(row))
        reduced = [
            sum(value / scale * float(each) for value, each in zip(row, column, strict=True))
            for column in weights["reduce"][layer].T
        ]
        for ahead in range(reach):
            for expert in range(experts):
                place = ahead * experts + expert
                logit = float(weights["bias"][layer, place]) + sum(
                    value * float(each) for value, each in zip(reduced, weights["expand"][layer, :, place], strict=True)
                )
                likely[ahead, expert] += 1 / (1 + math.exp(-logit)) / len(rows)
    return likely
