"""Figures of how far a model is from another: of each prediction, and of all together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.types import Float32Array, FloatArray, IntArray

STRETCHES: Final = 4  # of a window's second half, that are told apart


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its standard error, as if predictions were drawn independently."""

    value: float
    error: float

    @classmethod
    def of(cls, values: FloatArray) -> Mean:
        return cls(float(values.mean()), float(values.std() / math.sqrt(values.size)))


@dataclass(frozen=True, slots=True)
class Distance:
    """What a model says of the tokens that follow, beside what the reference says of them, [windows, scored] each."""

    surprise: FloatArray  # -log of the probability of the token that follows, nats
    reference_surprise: FloatArray  # the reference's
    divergence: FloatArray  # KL(reference || model), nats
    same: FloatArray  # 1 where the likeliest token is the same, else 0
    layers: FloatArray  # [layers]: see `layer_errors`; [0] where the two differ in their layers

    @property
    def kl(self) -> Mean:
        return Mean.of(self.divergence)

    @property
    def more_perplexity(self) -> Mean:
        """By what share perplexity is larger than the reference's: 0.01 is a hundredth."""
        more = Mean.of(self.surprise - self.reference_surprise)
        return Mean(math.expm1(more.value), math.exp(more.value) * more.error)

    def quantile(self, share: float) -> float:
        """The divergence that so large a share of the predictions does not exceed."""
        return float(np.quantile(self.divergence, share))

    @property
    def by_position(self) -> list[Mean]:
        """The divergence in equal stretches of the part of a window that counts, in order."""
        return [Mean.of(each) for each in np.array_split(self.divergence, STRETCHES, axis=1)]


def perplexity(surprise: FloatArray) -> float:
    return math.exp(float(surprise.mean()))


def surprise_of(logs: Float32Array, following: IntArray) -> FloatArray:
    """Of the tokens that follow, [rows]; logs [rows, vocab]: of the probabilities."""
    found: FloatArray = -logs[np.arange(len(logs)), following].astype(np.float64)
    return found


class LayerErrors:
    """How far states are off behind each layer: the root of the sum of squared differences, as a share of the
    reference's states."""

    def __init__(self) -> None:
        self._off: list[FloatArray] = []
        self._whole: list[FloatArray] = []

    def add(self, exact: Float32Array, other: Float32Array) -> None:
        """States [layers, tokens, width] of a window; nothing is told of models whose states have other shapes."""
        if exact.shape == other.shape:
            self._off.append(_squares(other.astype(np.float64) - exact))
            self._whole.append(_squares(exact.astype(np.float64)))

    def shares(self) -> FloatArray:
        """[layers]; [0] where there were none to compare."""
        if not self._off:
            return np.zeros(0)
        found: FloatArray = np.sqrt(_sum(self._off) / np.maximum(_sum(self._whole), np.finfo(np.float64).tiny))
        return found


def _squares(values: FloatArray) -> FloatArray:
    found: FloatArray = np.square(values).sum((1, 2))
    return found


def _sum(arrays: Sequence[FloatArray]) -> FloatArray:
    found: FloatArray = np.sum(arrays, axis=0)
    return found
