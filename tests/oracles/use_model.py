"""The slow and obvious implementation of moeinf._native.UseModel: one expert at a time, by the formulas of
docs/lab/policies.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from moeinf.types import FloatArray, IntArray, MoeShape

HALF_LIVES_TOKENS = (10, 160)
FLOOR = 0.01
HORIZON = 4
RATE = 0.005
NEXT_PAIR_RATE = 0.04
HORIZON_PAIR_RATE = 0.003
MOST_ROWS = 8


@dataclass
class Row:
    """The tokens of one row of the passes, which follow each other."""

    tokens: list[set[int]] = field(default_factory=list)  # the experts of each token so far
    features: list[list[list[float]]] = field(default_factory=list)  # after each visit, of each expert
    evidence: list[list[tuple[str, int]]] = field(default_factory=list)  # whose use spoke for others, after each visit
    single_visits: int = 0  # since the last of many tokens
    use: list[float] = field(default_factory=list)  # the probability that the next token uses each expert
    rate: list[float] = field(default_factory=list)  # the share of later tokens that do


@dataclass
class Layer:
    frequency: list[list[float]]  # of each expert, by half-life
    rows: list[Row] = field(default_factory=list)  # of the last pass


class SlowUseModel:
    """no_use and wait as of UseModel, both [num_layers, num_experts]."""

    def __init__(self, shape: MoeShape) -> None:
        chance = shape.top_k / shape.num_experts
        self.shape = shape
        self.no_use: FloatArray = np.full((shape.num_layers, shape.num_experts), 1 - chance)
        self.wait: FloatArray = np.full((shape.num_layers, shape.num_experts), (1 - chance) / chance)
        self._next_weights = [0.5, 0.4, 0.7, 0.5]
        self._horizon_weights = [0.4, 0.6, 0.3, 0.25, 1.3]
        self._next_pairs = PairWeights()
        self._horizon_pairs = PairWeights()
        self._layers = [
            Layer([[chance] * len(HALF_LIVES_TOKENS) for _ in range(shape.num_experts)])
            for _ in range(shape.num_layers)
        ]

    def observe(self, layer: int, ids: IntArray) -> None:
        at, goes_on = self._layers[layer], len(ids) <= MOST_ROWS
        tokens_of_rows = [[token] for token in ids.tolist()] if goes_on else [ids.tolist()]
        at.rows = [*at.rows, *(Row() for _ in tokens_of_rows)][: len(tokens_of_rows)]
        for number, tokens in enumerate(tokens_of_rows):
            self._observe_row(layer, number, tokens, learns=goes_on)
        for j in range(self.shape.num_experts):
            self.no_use[layer, j] = math.prod(1 - row.use[j] for row in at.rows)
            rate = 1 - math.prod(1 - row.rate[j] for row in at.rows)
            self.wait[layer, j] = self.no_use[layer, j] / rate

    def _observe_row(self, layer: int, number: int, tokens: list[list[int]], *, learns: bool) -> None:
        at, row = self._layers[layer], self._layers[layer].rows[number]
        for token in tokens:
            row.tokens.append(set(token))
            for j, frequencies in enumerate(at.frequency):
                for h, half_life in enumerate(HALF_LIVES_TOKENS):
                    decay = 2 ** (-1 / half_life)
                    frequencies[h] = decay * frequencies[h] + (1 - decay) * (j in token)
        if learns:
            self._learn_next(layer, row)
            self._learn_horizon(layer, row)
            row.single_visits += 1
        else:
            row.single_visits = 0
        evidence = self._evidence(layer, number)
        row.evidence.append(evidence)
        row.features.append([self._features(layer, row, j) for j in range(self.shape.num_experts)])
        row.use, row.rate = [], []
        for j, features in enumerate(row.features[-1]):
            soon = self._use_within_horizon(layer, j, features, evidence)
            pairs = self._next_pairs.sum(layer, evidence, j)
            row.use.append(likelihood(self._next_weights, [*features[:-1], 1], pairs))
            row.rate.append(1 - (1 - soon) ** (1 / HORIZON))

    def _learn_next(self, layer: int, row: Row) -> None:
        if not row.features:
            return
        errors = [row.use[j] - (j in row.tokens[-1]) for j in range(self.shape.num_experts)]
        step(self._next_weights, [[*features[:-1], 1] for features in row.features[-1]], errors)
        self._next_pairs.step(layer, row.evidence[-1], errors, NEXT_PAIR_RATE)

    def _learn_horizon(self, layer: int, row: Row) -> None:
        if row.single_visits + 1 < HORIZON or len(row.features) < HORIZON:
            return
        soon, rows, evidence = set().union(*row.tokens[-HORIZON:]), row.features[-HORIZON], row.evidence[-HORIZON]
        errors = [self._use_within_horizon(layer, j, each, evidence) - (j in soon) for j, each in enumerate(rows)]
        step(self._horizon_weights, [[*each, 1] for each in rows], errors)
        self._horizon_pairs.step(layer, evidence, errors, HORIZON_PAIR_RATE)

    def _use_within_horizon(self, layer: int, j: int, features: list[float], evidence: list[tuple[str, int]]) -> float:
        return likelihood(self._horizon_weights, [*features, 1], self._horizon_pairs.sum(layer, evidence, j))

    def _evidence(self, layer: int, number: int) -> list[tuple[str, int]]:
        tokens, below = self._layers[layer].rows[number].tokens, self._layers[layer - 1].rows[number : number + 1]
        said = [("here", i) for i in sorted(tokens[-1])]
        said += [("below", i) for row in below for i in sorted(row.tokens[-1])]
        return said + ([("before", i) for i in sorted(tokens[-2])] if len(tokens) > 1 else [])

    def _features(self, layer: int, row: Row, j: int) -> list[float]:
        pairs = self._next_pairs.sum(layer, row.evidence[-1], j)
        frequencies = self._layers[layer].frequency[j]
        return [*(math.log(f + FLOOR) for f in frequencies), float(j in row.tokens[-1]), pairs]


class PairWeights:
    """What the use of one expert says for that of another: weights by layer, by whose use where, and whose to come."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, tuple[str, int], int], np.float32] = {}

    def sum(self, layer: int, evidence: list[tuple[str, int]], j: int) -> float:
        return math.fsum(self._weights.get((layer, who, j), 0) for who in evidence)

    def step(self, layer: int, evidence: list[tuple[str, int]], errors: list[float], rate: float) -> None:
        for j, error in enumerate(errors):
            for who in evidence:
                weight = self._weights.get((layer, who, j), np.float32(0))
                self._weights[layer, who, j] = weight - np.float32(rate * error)


def likelihood(weights: list[float], features: list[float], pairs: float) -> float:
    return 1 / (1 + math.exp(-sum(w * f for w, f in zip(weights, features, strict=True)) - pairs))


def step(weights: list[float], rows: list[list[float]], errors: list[float]) -> None:
    for f in range(len(weights)):
        weights[f] -= RATE * sum(e * row[f] for e, row in zip(errors, rows, strict=True)) / len(rows)
