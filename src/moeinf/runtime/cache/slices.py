"""Experts that are cut into slices, each with a slot: slice s of the expert with key k has the key k * slices + s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from moeinf.runtime.cache.cache import KeepScores
from moeinf.types import FloatArray, IntArray, MoeShape

NEARLY: Final = 1e-9  # of a score: less than scores of two experts differ by


def shape_of_slices(shape: MoeShape, slices: int) -> MoeShape:
    """The shape of a model each slice of which counts as an expert. slices: of an expert."""
    if slices == 1:
        return shape
    return replace(
        shape,
        num_experts=shape.num_experts * slices,
        top_k=shape.top_k * slices,
        counts=tuple(count * slices for count in shape.counts),
    )


def keys_of_slices(keys: IntArray, slices: int) -> IntArray:
    """The keys of the slices of these experts, those of each in their order. Some of them may not exist."""
    if slices == 1:
        return keys
    every: IntArray = (keys[:, None] * slices + np.arange(slices)).ravel()
    return every


class SliceOrder:
    """In which order a layer's slices are computed: each expert's one after the other, and what is all there first."""

    def __init__(self, keys: Sequence[int], num_experts: int, absent: Sequence[int]) -> None:
        """keys: of the slices of so many experts, the same number of each, an expert's in their order."""
        of_each = len(keys) // max(1, num_experts)
        experts = [keys[first : first + of_each] for first in range(0, len(keys), max(1, of_each))]
        missing = set(absent)
        experts.sort(key=lambda slices: len(missing.intersection(slices)))
        self._order = [key for slices in experts for key in slices]
        self._places = {key: place for place, key in enumerate(self._order)}
        self._here: set[int] = set()  # resident, and not handed out
        self._next = 0  # place of the first slice that was not handed out

    def place_of(self, key: int) -> int:
        return self._places[key]

    def arrive(self, keys: Iterable[int]) -> list[int]:
        """Takes slices that are resident now; returns those that may be computed, with what waited for them."""
        self._here.update(keys)
        first = self._next
        while self._next < len(self._order) and self._order[self._next] in self._here:
            self._next += 1
        ready = self._order[first : self._next]
        self._here.difference_update(ready)
        return ready

    def give_up(self) -> int | None:
        """Returns the last of the slices that are here and wait for others, and counts it as absent."""
        if not self._here:
            return None
        last = max(self._here, key=self.place_of)
        self._here.remove(last)
        return last


class SliceScores:
    """The scores of experts as those of their slices: the last of an expert leave first.

    So what is left of it is computed while what is missing is read.
    """

    def __init__(self, policy: KeepScores, slices: int) -> None:
        self._policy = policy
        self._behind = NEARLY * np.arange(slices)

    def keep_scores(self, layer: int) -> FloatArray:
        scores = self._policy.keep_scores(layer)[:, :, None]
        below: FloatArray = scores - self._behind * np.maximum(np.abs(scores), 1)
        return below.reshape(len(scores), -1)
