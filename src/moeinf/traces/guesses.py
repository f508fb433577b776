"""Guesses at the routing of a layer, as look-ahead makes them before the layer runs: recorded, or drawn from the truth.

A trace without the model's hidden states cannot say what look-ahead would have guessed. Drawn guesses stand in for it
wherever recorded routing takes the place of a model: the simulator, and an engine that is fed with a trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from moeinf.config.guess_options import GuessOptions
from moeinf.errors import UsageError
from moeinf.traces.trace import Trace
from moeinf.types import Float32Array, FloatArray, IntArray

BLOCK_TOKENS: Final = 128  # drawn at once
SHAPE_OF_WEIGHTS: Final = 4.0  # of the gamma distribution that weights are drawn from where right ones weigh more


class Guess(NamedTuple):
    """What moeinf.runtime.policy.lookahead.LookAheadPredictor.expect takes; an expert of weight 0 is not guessed."""

    ids: IntArray  # [tokens, guesses]
    weights: Float32Array


class Guesses(Protocol):
    """Where guesses come from. The same question has the same answer whenever it is asked."""

    def at(self, first: int, last: int, layer: int) -> Guess | None:
        """The guess at the routing of the tokens first .. last in a layer; None where there is none."""
        ...


class RecordedGuesses:
    """Those of a trace that has them."""

    def __init__(self, trace: Trace) -> None:
        assert trace.guesses is not None and trace.guess_weights is not None
        self._ids, self._weights = trace.guesses, trace.guess_weights

    def at(self, first: int, last: int, layer: int) -> Guess | None:
        ids = self._ids[first:last, layer]
        made = ids >= 0
        weights: Float32Array = np.where(made, self._weights[first:last, layer], np.float32(0))
        return Guess(np.where(made, ids, 0), weights) if (weights > 0).any() else None


@dataclass(frozen=True, slots=True)
class LookAheadQuality:
    """How good guesses are: what share of the true experts they name, and what share of what they name is true.

    confidence: how many times the weight of a wrong expert a right one has, on average; 1: all weigh the same.
    """

    recall: float
    precision: float
    confidence: float = 1.0

    def __post_init__(self) -> None:
        """Raises UsageError for numbers that no guess can have."""
        for name, share in (("recall", self.recall), ("precision", self.precision)):
            if not 0 < share <= 1:
                raise UsageError(f"--lookahead-{name} is a share above 0 and up to 1, not {share:g}")
        if not 1 <= self.confidence <= 1000:
            raise UsageError(f"--lookahead-confidence is from 1 to 1000, not {self.confidence:g}")


def quality_of(options: GuessOptions) -> LookAheadQuality | None:
    """The quality of guesses that are to be drawn; None where none are. Raises UsageError for what cannot be."""
    if options.seed < 0:
        raise UsageError(f"--seed must be at least 0, not {options.seed}")
    recall, precision = options.lookahead_recall, options.lookahead_precision
    if recall is None:
        if precision is not None or options.lookahead_confidence != GuessOptions().lookahead_confidence:
            raise UsageError("guesses of look-ahead are drawn where --lookahead-recall is given; give it as well")
        return None
    return LookAheadQuality(recall, recall if precision is None else precision, options.lookahead_confidence)


class DrawnGuesses:
    """Guesses drawn from the true routing: right experts each with the recall's probability, wrong ones evenly.

    Where recall and precision are the same, a guess has top_k experts, as a router's has; else there are as many wrong
    ones as the precision wants on average. Weights are gamma-distributed where right experts
    have more weight than wrong ones. Whatever order is asked in, the seed and the token decide what is drawn.
    """

    def __init__(self, trace: Trace, quality: LookAheadQuality, seed: int = 0) -> None:
        self._trace, self._quality, self._seed = trace, quality, seed
        self._block = -1
        self._weights: FloatArray = np.zeros((0, 0, 0))  # [tokens of the block, layers, experts]; 0: not guessed
        self._one: list[list[Guess | None]] = []  # of a single token of the block, by token and layer

    def at(self, first: int, last: int, layer: int) -> Guess | None:
        if last == first + 1:
            self._enter(first // BLOCK_TOKENS)
            return self._one[first % BLOCK_TOKENS][layer]
        weights = np.concatenate([self._of_block(block, first, last, layer) for block in _blocks(first, last)])
        width = int((weights > 0).sum(axis=1).max())
        ids: IntArray = np.argsort(-weights, axis=1, kind="stable")[:, :width]
        return Guess(ids, np.take_along_axis(weights, ids, axis=1).astype(np.float32)) if width else None

    def _of_block(self, block: int, first: int, last: int, layer: int) -> FloatArray:
        self._enter(block)
        start = block * BLOCK_TOKENS
        part: FloatArray = self._weights[max(0, first - start) : last - start, layer]
        return part

    def _enter(self, block: int) -> None:
        if block == self._block:
            return
        self._block, self._weights = block, self._drawn(block)
        order: IntArray = np.argsort(-self._weights, axis=2, kind="stable")
        weights = np.take_along_axis(self._weights, order, axis=2).astype(np.float32)
        self._one = [
            [
                Guess(ids[None, :width], found[None, :width]) if width else None
                for ids, found, width in zip(*of_token, strict=True)
            ]
            for of_token in zip(order, weights, (self._weights > 0).sum(axis=2).tolist(), strict=True)
        ]

    def _drawn(self, block: int) -> FloatArray:
        rng, quality, shape = np.random.default_rng([self._seed, block]), self._quality, self._trace.shape
        experts = self._trace.experts[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
        sizes = len(experts), shape.num_layers, shape.num_experts
        counts = np.array([shape.experts_of(layer) for layer in range(shape.num_layers)])
        exists = np.arange(shape.num_experts) < counts[:, None]
        true = np.zeros(sizes, bool)
        np.put_along_axis(true, np.maximum(experts, 0), True, axis=2)
        visited = experts[:, :, :1] >= 0
        right = true & (rng.random(sizes) < quality.recall)
        num_right = right.sum(axis=2)
        if quality.recall == quality.precision:
            num_wrong = shape.top_k - num_right
        else:
            wanted = num_right * (1 - quality.precision) / quality.precision
            num_wrong = np.floor(wanted + rng.random(sizes[:2])).astype(np.int64)
        order = np.where(exists & ~true, rng.random(sizes), 2.0).argsort(axis=2).argsort(axis=2)
        wrong = (order < num_wrong[:, :, None]) & exists & ~true
        weight = rng.gamma(SHAPE_OF_WEIGHTS, size=sizes) if quality.confidence > 1 else np.ones(sizes)
        drawn: FloatArray = weight * (right * quality.confidence + wrong) * visited
        return drawn


def _blocks(first: int, last: int) -> range:
    return range(first // BLOCK_TOKENS, (last - 1) // BLOCK_TOKENS + 1)


def guesses_of(trace: Trace, drawn: LookAheadQuality | None, seed: int = 0) -> Guesses | None:
    """Those that are to be drawn, else those that were recorded, else None."""
    if drawn is not None:
        return DrawnGuesses(trace, drawn, seed)
    return None if trace.guesses is None else RecordedGuesses(trace)
