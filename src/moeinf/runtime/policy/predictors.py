"""Which experts the layers ahead will need, as far as the routing seen so far tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import NUM_MATCHES, ActivationCollection, Match, normalise_rows
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.plain_predictors import PopularityPredictor, PreviousTokenPredictor
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.policy.policy_trace import count_ids
from moeinf.types import Float32Array, FloatArray, IntArray, MoeShape, Phase

NO_PREDICTOR: Final = "none"
DEFAULT: Final = LookAheadPredictor.name  # where nothing else is asked for
PREDICTORS: Final = (NO_PREDICTOR, "popularity", "previous-token", "eamc", "frequency", "cross-layer", "look-ahead")
BASELINES: Final = ("popularity", "previous-token", "frequency", "cross-layer")  # as those of eviction.py


class ReuseModel:
    """Probability that the next token at a layer uses an expert: an online logistic regression, one for all experts.

    Features: log of the expert's decayed frequencies, whether the layer's last token used it, and 1. The weights start
    at what fits two recorded models about equally well (docs/lab/policies.md) and follow the model at hand.
    """

    HALF_LIVES_TOKENS: Final = (10.0, 160.0)
    FIRST_WEIGHTS: Final = (0.5, 0.4, 0.7, 0.5)
    LEARNING_RATE: Final = 0.03  # 0.003 .. 0.03 measure alike, 0.3 loses
    FLOOR: Final = 0.01  # added to a frequency before its log; 0.001 fits worse

    def __init__(self, shape: MoeShape) -> None:
        layers, experts, chance = shape.num_layers, shape.num_experts, shape.top_k / shape.num_experts
        self._decay: FloatArray = np.exp2(-1 / np.array(self.HALF_LIVES_TOKENS))[:, None]
        self._weights: FloatArray = np.array(self.FIRST_WEIGHTS)
        self._frequency: FloatArray = np.full((layers, len(self._decay), experts), chance)
        self._features: FloatArray = np.ones((layers, len(self._weights), experts))
        self._features[:, :-2] = np.log(chance + self.FLOOR)
        self._features[:, -2] = 0.0
        self.logits: FloatArray = np.full((layers, experts), np.log(chance / (1 - chance) if chance < 1 else 1.0))
        self.odds_against: FloatArray = np.exp(-self.logits)  # (1 - p) / p
        self._seen_one = 1 - self._decay
        self._rows = list(
            zip(self._features, self._features[:, :-2], self._frequency, self.logits, self.odds_against, strict=True)
        )

    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k]; afterwards `logits[layer]` is of the token to come."""
        features, log_frequency, frequency, logits, odds_against = self._rows[layer]
        last: FloatArray = np.zeros(features.shape[1])  # used by the last token
        last[ids[-1]] = 1.0
        if len(ids) == 1:
            error = 1 / (1 + odds_against) - last
            self._weights -= self.LEARNING_RATE / len(error) * features.dot(error)
            frequency *= self._decay
            frequency += self._seen_one * last
        else:  # many tokens at once say nothing of one token's probability: count, do not learn
            used: FloatArray = np.zeros((len(ids), features.shape[1]))  # [tokens, E]
            np.put_along_axis(used, ids, 1.0, axis=1)
            frequency *= self._decay ** len(ids)
            frequency += self._seen_one * self._decay ** np.arange(len(ids) - 1, -1, -1) @ used
        np.log(frequency + self.FLOOR, out=log_frequency)
        features[-2] = last
        np.dot(self._weights, features, out=logits)
        np.exp(np.negative(logits, out=odds_against), out=odds_against)


def probability(logits: FloatArray) -> FloatArray:
    """The logistic function."""
    likelihood: FloatArray = 1 / (1 + np.exp(-logits))
    return likelihood


class EamcPredictor(Predictor):
    """The past requests most like this one tell what it needs (arXiv 2401.14361 v3, 4.5).

    The iEAM of the running pass is matched on its rows so far; a likelihood is top_k times the matches' share.
    Matching the whole request so far instead recalls less (docs/lab/policies.md).
    """

    name = "eamc"

    def __init__(self, collection: ActivationCollection, num_matches: int = NUM_MATCHES) -> None:
        self._collection = collection
        self._match = Match(collection)
        self._num_matches = num_matches

    def begin(self, phase: Phase) -> None:
        self._match.restart()

    def observe(self, layer: int, ids: IntArray) -> None:
        self._match.record(layer, ids)

    def restart(self) -> None:
        self._match.restart()

    def predict(self, layer: int) -> FloatArray | None:
        nearest = self._match.nearest(self._num_matches)
        if not len(nearest):
            return None
        matched = self._collection.rows[nearest, layer + 1 :].sum(axis=0, dtype=float)
        return normalise_rows(matched) * self._collection.shape.top_k


class FrequencyPredictor(Predictor):
    """What a layer used lately it uses again, in this request or in the last: ReuseModel as a prediction."""

    name = "frequency"

    def __init__(self, shape: MoeShape) -> None:
        self._use = ReuseModel(shape)
        self._seen = False

    def observe(self, layer: int, ids: IntArray) -> None:
        self._use.observe(layer, ids)
        self._seen = True

    def predict(self, layer: int) -> FloatArray | None:
        return probability(self._use.logits[layer + 1 :]) if self._seen else None


class CrossLayerPredictor(Predictor):
    """ReuseModel, and for the next layer what this token's experts in this layer were followed by before.

    logit = logit(use) + DAMPING * sum_i log(P(j at l+1 | i at l) / P(j at l+1)) over the token's experts i at l:
    naive Bayes, damped because the experts of one token are not independent evidence. Learned online.
    """

    name = "cross-layer"

    DAMPING: Final = 0.6
    PRIOR_TOKENS: Final = 4.0  # P(j | i) counts as if seen so often at j's plain rate

    def __init__(self, shape: MoeShape) -> None:
        layers, experts = shape.num_layers, shape.num_experts
        self._use = ReuseModel(shape)
        self._uses: FloatArray = np.full((layers, experts), 1.0)
        self._tokens: FloatArray = np.full(layers, experts / shape.top_k)
        self._pairs: FloatArray = np.zeros((layers, experts, experts))  # [l, i, j]: tokens with i at l, j at l + 1
        self._layer = -1
        self._ids: IntArray = np.zeros((0, shape.top_k), np.int64)

    def begin(self, phase: Phase) -> None:
        self._layer = -1

    def observe(self, layer: int, ids: IntArray) -> None:
        if layer == self._layer + 1 and layer and len(ids) == len(self._ids):
            if len(ids) == 1:
                self._pairs[layer - 1][self._ids.T, ids] += 1
            else:
                np.add.at(self._pairs[layer - 1], (self._ids[:, :, None], ids[:, None, :]), 1)
        if len(ids) == 1:
            self._uses[layer, ids[0]] += 1
        else:
            self._uses[layer] += count_ids(ids, self._uses.shape[1])
        self._tokens[layer] += len(ids)
        self._use.observe(layer, ids)
        self._layer, self._ids = layer, ids

    def restart(self) -> None:
        self._layer = -1

    def predict(self, layer: int) -> FloatArray | None:
        if self._layer != layer or layer < 0:
            return None
        logits = self._use.logits[layer + 1 :].copy()
        if len(self._ids) == 1 and len(logits):
            logits[0] += self.DAMPING * self._evidence(layer)
        return probability(logits)

    def _evidence(self, layer: int) -> FloatArray:
        plain = self._uses[layer + 1] / self._tokens[layer + 1]
        seen = self._uses[layer, self._ids[0]][:, None]
        lift = (self._pairs[layer, self._ids[0]] / plain + self.PRIOR_TOKENS) / (seen + self.PRIOR_TOKENS)
        evidence: FloatArray = np.log(lift).sum(axis=0)
        return evidence


class CombinedPredictor(Predictor):
    """One predictor as far as it sees, and another for the layers beyond: look-ahead+eamc, for instance."""

    def __init__(self, near: Predictor, far: Predictor) -> None:
        self.parts = near, far
        self.name = f"{near.name}+{far.name}"
        self.wants_guesses = near.wants_guesses or far.wants_guesses

    def begin(self, phase: Phase) -> None:
        for part in self.parts:
            part.begin(phase)

    def observe(self, layer: int, ids: IntArray) -> None:
        for part in self.parts:
            part.observe(layer, ids)

    def restart(self) -> None:
        for part in self.parts:
            part.restart()

    def expect(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        for part in self.parts:
            part.expect(layer, ids, weights)

    def predict(self, layer: int) -> FloatArray | None:
        near, far = (part.predict(layer) for part in self.parts)
        if near is None or far is None:
            return far if near is None else near
        return np.concatenate([near, far[len(near) :]])


def check_predictor(name: str, offered: Sequence[str] = PREDICTORS) -> None:
    """Raises UsageError for what neither is one of those that are offered nor two of them, joined by "+"."""
    parts = name.split("+")
    known = set(parts) <= {*offered} and len(set(parts)) == len(parts) <= 2
    if not known or (len(parts) > 1 and NO_PREDICTOR in parts):
        raise UsageError(
            f"unknown --predictor {name!r}; known: {', '.join(offered)}, and two of them with a + between, the second "
            "for the layers that the first does not see: look-ahead+eamc"
        )


def make_predictor(name: str, shape: MoeShape, collection: ActivationCollection) -> Predictor | None:
    """Returns None for NO_PREDICTOR. Raises UsageError as check_predictor does."""
    check_predictor(name)
    made: dict[str, Callable[[], Predictor]] = {
        "popularity": lambda: PopularityPredictor(shape),
        "previous-token": lambda: PreviousTokenPredictor(shape),
        "eamc": lambda: EamcPredictor(collection),
        "frequency": lambda: FrequencyPredictor(shape),
        "cross-layer": lambda: CrossLayerPredictor(shape),
        "look-ahead": lambda: LookAheadPredictor(shape),
    }
    if name == NO_PREDICTOR:
        return None
    near, *far = (made[part]() for part in name.split("+"))
    return CombinedPredictor(near, far[0]) if far else near
