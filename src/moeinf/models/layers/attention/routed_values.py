"""Values that experts make: each token has a few of many matrices, and the sum of what these give (K2 Horizon)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol

import numpy as np

from moeinf.models.layers.array_math import A
from moeinf.models.layers.protocol import HasWeights, P, Part, R


class ValueExpertsOf(Protocol[A]):
    def sum_of(self, x: A, ids: A, weights: A) -> A:
        """x [tokens, hidden], ids and weights [tokens, used] -> the sums of weight * silu(x w^T), [tokens, rows]."""
        ...


@dataclass(frozen=True, slots=True)
class ValueExpertsPart(Part[A, P, R, ValueExpertsOf[A]]):
    names: tuple[str, ...]  # of the matrices [rows, hidden], in the order of the experts


class AllValueExperts(Generic[A]):
    """Every expert of every token, whose weight is 0 where it was not chosen: nothing waits for the choice."""

    def __init__(self, memory: HasWeights[A], part: ValueExpertsPart[A, P, R]) -> None:
        weights = memory.weights
        self._math, self._experts = weights.math, [weights.linear(name, activation="silu") for name in part.names]
        self._numbers = weights.math.of_host(np.arange(len(part.names)))

    def sum_of(self, x: A, ids: A, weights: A) -> A:
        total = self._share(0, x, ids, weights)
        for number in range(1, len(self._experts)):
            total = total + self._share(number, x, ids, weights)
        return total

    def _share(self, number: int, x: A, ids: A, weights: A) -> A:
        chosen = self._math.where(ids == self._numbers[number : number + 1], weights, 0.0)
        return self._experts[number](x) * self._math.sum(chosen, -1, True)
