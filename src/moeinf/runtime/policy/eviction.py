"""Which expert leaves the cache when another needs its slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf._native import NextUseScores, UseModel, lowest
from moeinf.errors import UsageError
from moeinf.runtime.policy.counting import DecayedFrequency, LastButOne, LeastFrequentlyUsed, LeastRecentlyUsed
from moeinf.runtime.policy.eamc import NUM_MATCHES, ActivationCollection, Match, normalise_rows
from moeinf.runtime.policy.policy_protocol import DevicePolicy, Listener, TokenScores
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.runtime.policy.priority import EPS
from moeinf.runtime.policy.segments import AdaptiveReplacement, SegmentedLru
from moeinf.runtime.policy.tuned import TunedNetwork
from moeinf.types import ExpertId, FloatArray, IntArray, MoeShape, Phase

DEFAULT: Final = "next-use"  # where nothing else is asked for, and no network is better
TUNED: Final = "tuned"  # next-use by a network that was trained on the model; not every model has one
POLICIES: Final = ("lru", "lfu", "decayed-lfu", "slru", "lru-2", "arc", "paper-v1", "paper", "next-use")
BASELINES: Final = POLICIES[1:7]  # to compare with: only verbs that compare offer them


def choose_victims(scores: FloatArray, evictable: npt.NDArray[np.bool_], count: int) -> list[ExpertId]:
    """The `count` experts of smallest score among the `evictable` [L, E]; of equals the lowest (layer, expert)."""
    victims = lowest(scores.ravel(), evictable.ravel().view(np.uint8), True, [], count)
    assert len(victims) == count, "fewer experts may be evicted than have to be"
    return [ExpertId(*divmod(victim, scores.shape[1])) for victim in victims]


class RequestAware(Listener):
    """arXiv 2401.14361 v1, Algorithm 2: out goes what the running request used least, late layers before early ones.

    keep = (EAM[i,j] / sum_j EAM[i,j] + eps) * (1 - i/L), with the matrix of the request, its prompt included.
    """

    name = "paper-v1"
    step = 0

    def __init__(self, shape: MoeShape, eps: float = EPS, layer_decay: bool = True) -> None:
        """layer_decay: the factor (1 - i/L); without it, to see what it is worth."""
        self._eps = eps
        self._request = ActivationMatrix(shape)
        falling = np.arange(shape.num_layers)[:, None] / float(shape.num_layers)
        self._layer_decay: FloatArray = 1 - falling * layer_decay
        self._scores: FloatArray | None = None  # None after an observation

    def begin(self, phase: Phase) -> None:
        self._scores = None
        if phase == "prefill":
            self._request.clear()

    def observe(self, layer: int, ids: IntArray) -> None:
        self._request.record(layer, ids)
        self._scores = None

    def keep_scores(self, layer: int) -> FloatArray:
        if self._scores is None:
            self._scores = (normalise_rows(self._likely()) + self._eps) * self._layer_decay
        return self._scores

    def token_scores(self) -> TokenScores:
        return TokenScores(self.keep_scores(len(self._layer_decay) - 1), -np.inf)

    def _likely(self) -> IntArray | FloatArray:
        """The matrix [L, E] that the experts to come are taken from."""
        return self._request.counts


class ActivationAware(RequestAware):
    """arXiv 2401.14361 v3, Algorithm 1: the same with pEAM, what the requests that match the running pass used.

    keep = (pEAM[i,j] + eps) * (1 - i/L) / sum_j pEAM[i,j]. pEAM here has every row of the matches, those of layers that
    ran already too: they stand for the next token. Without a match the request's own matrix serves (v1).
    """

    name = "paper"

    def __init__(
        self,
        shape: MoeShape,
        collection: ActivationCollection,
        num_matches: int = NUM_MATCHES,
        eps: float = EPS,
        layer_decay: bool = True,
    ) -> None:
        super().__init__(shape, eps, layer_decay)
        self._collection = collection
        self._match = Match(collection)
        self._num_matches = num_matches

    def begin(self, phase: Phase) -> None:
        super().begin(phase)
        self._match.restart()

    def observe(self, layer: int, ids: IntArray) -> None:
        super().observe(layer, ids)
        self._match.record(layer, ids)

    def restart(self) -> None:
        self._match.restart()

    def _likely(self) -> IntArray | FloatArray:
        nearest = self._match.nearest(self._num_matches)
        if not len(nearest):
            return super()._likely()
        likely: FloatArray = self._collection.rows[nearest].sum(axis=0, dtype=float)
        return likely


class NextUse(Listener):
    """Out goes the expert whose next use is expected last.

    keep = -(layers until the expert's layer is visited again + (1 - P) / rate * L). P is the probability that such a
    visit uses it: that of UseModel where the visit is of one token, as decode's are, and 1 - (1 - p)^n in the layers
    that a running pass of n tokens has not reached; rate is the share of later tokens that will use it. L is the number
    of layers that a step of decode visits: all, or those of the decoder. A layer of the encoder comes again with the
    next source.
    """

    NEXT_SOURCE: Final = 1000  # steps until then, of which nobody knows the number: more than most answers have
    USED_PROBABILITY: Final = 1 / 3  # at least, of an expert that the running token uses, to be used by the next

    def __init__(self, shape: MoeShape, encoder_layers: int = 0, tuned: TunedNetwork | None = None) -> None:
        """encoder_layers: how many layers, the first ones, only a source visits. tuned: in place of UseModel."""
        self.name = DEFAULT if tuned is None else TUNED
        self.step = max(1, shape.num_layers - encoder_layers)
        self._use = UseModel(shape.num_layers, shape.num_experts, shape.top_k) if tuned is None else tuned.use()
        self.native = NextUseScores(
            self._use.no_use, self._use.wait, encoder_layers=encoder_layers, next_source=self.NEXT_SOURCE
        )  # of the same scores: a cache asks it alone
        until_source = np.where(np.arange(shape.num_layers) < encoder_layers, self.NEXT_SOURCE * self.step, 0.0)
        self._until_source: FloatArray = until_source[:, None]

    def observe(self, layer: int, ids: IntArray) -> None:
        self._use.observe(layer, ids)
        self.native.observed(len(ids))

    def restart(self) -> None:
        self._use.restart()

    def keep_scores(self, layer: int) -> FloatArray:
        return self.native.keep_scores(layer)

    def token_scores(self) -> TokenScores:
        """The device does not learn what the token's experts do to their probability: it takes them to be likely."""
        scores: FloatArray = self._use.wait * -self.step - self._until_source
        return TokenScores(scores, (1 - 1 / self.USED_PROBABILITY) * self.step)


def make_policy(
    name: str,
    shape: MoeShape,
    collection: ActivationCollection,
    num_slots: int,
    encoder_layers: int = 0,
    tuned: TunedNetwork | None = None,
) -> DevicePolicy:
    """num_slots: of the cache. encoder_layers: how many layers, the first ones, only a source visits.

    tuned: what TUNED goes by. Raises UsageError for a name not in POLICIES, but for TUNED where it has that.
    """
    if name == TUNED and tuned is not None:
        return NextUse(shape, encoder_layers, tuned)
    made: dict[str, Callable[[], DevicePolicy]] = {
        "lru": lambda: LeastRecentlyUsed(shape),
        "lfu": lambda: LeastFrequentlyUsed(shape),
        "decayed-lfu": lambda: DecayedFrequency(shape),
        "slru": lambda: SegmentedLru(shape, num_slots),
        "lru-2": lambda: LastButOne(shape),
        "arc": lambda: AdaptiveReplacement(shape, num_slots),
        "paper-v1": lambda: RequestAware(shape),
        "paper": lambda: ActivationAware(shape, collection),
        "next-use": lambda: NextUse(shape, encoder_layers),
    }
    if name not in made:
        raise UsageError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return made[name]()
