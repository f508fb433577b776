"""What knowledge of the routing to come would be worth: the ceiling of each idea for eviction and for prefetch.

Each policy here is `next-use` that is told something of the future, so that no method which guesses the same can hit
more often; beside them stand the same ideas with what can be known at the time. All replay recorded routing of single
tokens.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from experiments import Row

from moeinf.bench.simulation.belady import Belady
from moeinf.bench.simulation.replay import SimulatedTier, drive, replay
from moeinf.bench.simulation.run import SimulatedRun, Timing
from moeinf.bench.simulation.simulate import slots_of
from moeinf.runtime.policy.counting import LeastRecentlyUsed
from moeinf.runtime.policy.eamc import NUM_MATCHES, ActivationCollection, Match, normalise_rows
from moeinf.runtime.policy.eviction import NextUse
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.policy_protocol import EvictionPolicy, Listener, Predictor
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.traces.guesses import DrawnGuesses, LookAheadQuality
from moeinf.traces.statistics import request_matrices
from moeinf.traces.trace import Trace
from moeinf.types import FloatArray, IntArray, Phase

SHARES: Final = (10, 20, 35, 50)  # percent of the experts that are resident
SHARES_IN_TIME: Final = (20, 50)
HORIZON: Final = 4  # tokens that the rate of later uses is learned from, as in UseModel
RATE: Final = 0.05  # of the regressions of WithPrior
LEAST: Final = 1e-6  # of a probability

BoolArray = npt.NDArray[np.bool_]


class _Told(Listener):
    """next-use, and where in the trace it is."""

    def __init__(self, trace: Trace) -> None:
        self.inner = NextUse(trace.shape)
        self.shape = trace.shape
        self.used: BoolArray = np.zeros(
            (trace.num_tokens + HORIZON, trace.shape.num_layers, trace.shape.num_experts), bool
        )
        np.put_along_axis(self.used[: trace.num_tokens], trace.experts, True, axis=2)
        self.token = -1
        self._layers = np.arange(trace.shape.num_layers)

    def begin(self, phase: Phase) -> None:
        self.inner.begin(phase)

    def observe(self, layer: int, ids: IntArray) -> None:
        self.token += layer == 0
        self.inner.observe(layer, ids)

    def chances(self) -> tuple[FloatArray, FloatArray]:
        """(p of the next visit, rate of later ones), [layers, experts] both, as next-use has learned them."""
        use = self.inner._use
        no_use = np.clip(use.no_use, LEAST, 1.0)
        return 1 - no_use, np.clip(no_use / np.maximum(use.wait, LEAST), LEAST, 1.0)

    def scored(self, layer: int, tokens_more: FloatArray) -> FloatArray:
        """Keep scores [layers, experts], of how many tokens behind the layer's next visit an expert is used again."""
        visits = (self._layers - layer - 1) % self.shape.num_layers + 1
        scores: FloatArray = -(visits[:, None] + tokens_more * self.shape.num_layers)
        return scores


class Foreseeing(_Told):
    """Knows which experts the next visits of layers use."""

    def __init__(self, trace: Trace, visits: int, *, next_layer_alone: bool = False) -> None:
        """visits: of each layer; next_layer_alone: of no other than the one behind the running one."""
        super().__init__(trace)
        self.name = "told"
        self._visits, self._next_layer_alone = visits, next_layer_alone

    def keep_scores(self, layer: int) -> FloatArray:
        p, rate = self.chances()
        guessed = (1 - p) / rate
        first = self.token + (self._layers <= layer)  # of each layer, the token of its next visit
        known = self._visits - 1 + 1 / rate  # of what those visits do not use
        for visit in reversed(range(self._visits)):
            known = np.where(self.used[first + visit, self._layers], visit, known)
        if self._next_layer_alone:
            known = np.where((self._layers == layer + 1)[:, None], known, guessed)
        return self.scored(layer, known)


class WithPrior(_Told):
    """next-use with one feature more: how much a request's matrix uses the expert.

    Two logistic regressions on the logit of next-use's own probability, on log(prior + 0.01) and 1 give p and the
    probability of a use within the next tokens. They learn from the true labels at once, which no machine could.
    """

    def __init__(self, trace: Trace, prior: str) -> None:
        """prior: "final", of the whole request, with what it has yet to use; "so far"; or "matches", the requests in
        the collection that are nearest to the running token, as the paper has it."""
        super().__init__(trace)
        self.name = f"prior {prior}"
        self._prior = prior
        self._of_token = np.searchsorted(trace.offsets, np.arange(trace.num_tokens), side="right") - 1
        self._final = normalise_rows(request_matrices(trace)) * trace.shape.top_k if prior == "final" else None
        size = trace.shape.num_layers, trace.shape.num_experts
        self._so_far: IntArray = np.zeros(size, np.int64)
        self._p: FloatArray = np.full(size, trace.shape.top_k / trace.shape.num_experts)
        self._rate = self._p.copy()
        self._weights: FloatArray = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])  # of p, and of a use within HORIZON
        self.collection = ActivationCollection(trace.shape)
        self._match = Match(self.collection)

    def observe(self, layer: int, ids: IntArray) -> None:
        super().observe(layer, ids)
        if layer == 0 and self.token and self._of_token[self.token] > self._of_token[self.token - 1]:
            self._so_far[:] = 0
        self._so_far[layer, ids[0]] += 1
        if self._prior == "matches":
            self._match.record(layer, ids)
        p, rate = (each[layer] for each in self.chances())
        soon = 1 - (1 - rate) ** HORIZON
        prior = np.log(self._row(layer) + 0.01)
        after = self.used[self.token + 1 : self.token + 1 + HORIZON, layer]
        found = []
        for weights, chance, label in zip(self._weights, (p, soon), (after[0], after.any(axis=0)), strict=True):
            chance = np.clip(chance, LEAST, 1 - LEAST)
            features = np.stack([np.log(chance / (1 - chance)), prior, np.ones_like(prior)])
            likely = 1 / (1 + np.exp(-(weights @ features)))
            found.append(likely)
            weights -= RATE * features @ (likely - label) / len(prior)
        self._p[layer] = found[0]
        self._rate[layer] = np.clip(1 - (1 - found[1]) ** (1 / HORIZON), LEAST, 1.0)

    def _row(self, layer: int) -> FloatArray:
        """How many of a token's experts of the layer each expert is, by the prior."""
        if self._final is not None:
            final: FloatArray = self._final[self._of_token[self.token], layer]
            return final
        counts: FloatArray = self._so_far[layer].astype(float)
        if self._prior == "matches":
            nearest = self._match.nearest(NUM_MATCHES)
            counts = self.collection.rows[nearest, layer].sum(axis=0, dtype=float) if len(nearest) else 0 * counts
        row: FloatArray = normalise_rows(counts) * self.shape.top_k
        return row

    def keep_scores(self, layer: int) -> FloatArray:
        return self.scored(layer, (1 - self._p) / self._rate)


class KnownLayers(Predictor):
    """Knows which experts the running token uses in the next layers."""

    def __init__(self, trace: Trace, layers: int) -> None:
        self.name, self._layers = f"the next {layers} layers known", layers
        self._truth: FloatArray = np.zeros((trace.num_tokens, trace.shape.num_layers, trace.shape.num_experts))
        np.put_along_axis(self._truth, trace.experts, 1.0, axis=2)
        self._token = -1

    def observe(self, layer: int, ids: IntArray) -> None:
        self._token += layer == 0

    def predict(self, layer: int) -> FloatArray | None:
        return self._truth[self._token, layer + 1 : layer + 1 + self._layers]


def of_eviction(trace: Trace) -> list[Row]:
    """Hit rates at SHARES without prefetch, by what next-use is told."""
    matches = WithPrior(trace, "matches")
    policies: dict[str, EvictionPolicy] = {
        "`lru`": LeastRecentlyUsed(trace.shape),
        "`next-use`": NextUse(trace.shape),
        "matches of past requests": matches,
        "the request's matrix so far": WithPrior(trace, "so far"),
        "*the request's final matrix*": WithPrior(trace, "final"),
        "*the next layer*": Foreseeing(trace, 1, next_layer_alone=True),
        "*the next visit of each layer*": Foreseeing(trace, 1),
        "*the next two visits of each layer*": Foreseeing(trace, 2),
        "*everything (`belady`)*": Belady(trace),
    }
    rows = []
    for name, policy in policies.items():
        runs = [SimulatedRun(trace.shape, slots_of(trace.shape, share), policy) for share in SHARES]
        observers: list[Listener] = [policy]
        if policy is matches:
            observers.insert(0, RequestRecorder(trace.shape, matches.collection.add))
        drive(trace, runs, observers, None, 0)
        hits = {share: run.tier.stats.hit_rate for share, run in zip(SHARES, runs, strict=True)}
        rows.append({"told": name, "hits": hits})
    return rows


def of_prefetch(trace: Trace, timing: Timing, drawn: LookAheadQuality) -> list[Row]:
    """Milliseconds a token at SHARES_IN_TIME under next-use, by what is known of the running token; with admission."""
    predictors: dict[str, Predictor | None] = {
        "nothing": None,
        f"look-ahead, recall {drawn.recall:g}": LookAheadPredictor(trace.shape),
        "*the next layer*": KnownLayers(trace, 1),
        "*the next 2 layers*": KnownLayers(trace, 2),
        "*the next 4 layers*": KnownLayers(trace, 4),
        "*all layers of the token*": KnownLayers(trace, trace.shape.num_layers),
    }
    rows = []
    for name, predictor in predictors.items():
        policy = NextUse(trace.shape)
        tiers = [SimulatedTier(slots_of(trace.shape, share), policy) for share in SHARES_IN_TIME]
        results = replay(trace, tiers, None, predictor, timing, guesses=DrawnGuesses(trace, drawn))
        times = {share: 1e3 * result["decode"].token_s for share, result in zip(SHARES_IN_TIME, results, strict=True)}
        rows.append({"known": name, "ms_a_token": times})
    return rows
