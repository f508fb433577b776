"""Experts that are cut into slices, each with a slot: slice s of the expert with key k has the key k * slices + s."""

from __future__ import annotations

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
