"""Which expert leaves the cache when another needs its slot."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from moeinf._native import UseModel, lowest
from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import NUM_MATCHES, ActivationCollection, Match, normalise_rows
from moeinf.runtime.policy.priority import EPS
from moeinf.runtime.policy.trace import ActivationMatrix, count_ids
from moeinf.types import ExpertId, FloatArray, IntArray, MoeShape, Phase

POLICIES: Final = ("lru", "lfu", "paper", "next-use")


class EvictionPolicy(Protocol):
    """Told every routing in order; scores every expert. The cache keeps what scores high.

    begin("prefill") starts a request, begin("decode") its second phase; a further begin("decode") changes nothing.
    """

    name: str

    def begin(self, phase: Phase) -> None: ...

    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k] of `layer`; the ids of one token are distinct."""
        ...

    def keep_scores(self, layer: int) -> FloatArray:
        """Scores [L, E] right after observe(layer, ..): the smallest leaves first; see choose_victims.

        The array belongs to the policy: read-only for the caller, and valid until the next observe.
        """
        ...


class TokenScores(NamedTuple):
    """The scores by which a device chooses victims for a whole token, while the host learns nothing."""

    scores: FloatArray  # [L, E], but for the distance: belongs to the policy as those of keep_scores do
    used: float  # what the score of an expert that the token uses rises to, where it is lower


class DevicePolicy(EvictionPolicy, Protocol):
    """An eviction policy whose scores a device can finish."""

    @property
    def step(self) -> int:
        """From a score a device takes the number of layers until the expert's own, of a step of so many; 0: nothing."""
        ...

    def token_scores(self) -> TokenScores:
        """The scores for the next token; called after the observation of a token's last layer."""
        ...


def choose_victims(scores: FloatArray, evictable: npt.NDArray[np.bool_], count: int) -> list[ExpertId]:
    """The `count` experts of smallest score among the `evictable` [L, E]; of equals the lowest (layer, expert)."""
    victims = lowest(scores.ravel(), evictable.ravel().view(np.uint8), True, [], count)
    assert len(victims) == count, "fewer experts may be evicted than have to be"
    return [ExpertId(*divmod(victim, scores.shape[1])) for victim in victims]


class LeastRecentlyUsed:
    """Out goes the expert whose last use is longest ago, measured in layer visits."""

    name = "lru"
    step = 0

    def __init__(self, shape: MoeShape) -> None:
        self._last_use: FloatArray = np.full((shape.num_layers, shape.num_experts), -1.0)
        self._clock = 0

    def begin(self, phase: Phase) -> None:
        pass

    def observe(self, layer: int, ids: IntArray) -> None:
        self._last_use[layer, ids] = self._clock
        self._clock += 1

    def keep_scores(self, layer: int) -> FloatArray:
        return self._last_use

    def token_scores(self) -> TokenScores:
        return TokenScores(self._last_use, self._clock)


class LeastFrequentlyUsed:
    """Out goes the expert that the fewest tokens have used since the start."""

    name = "lfu"
    step = 0

    def __init__(self, shape: MoeShape) -> None:
        self._uses: FloatArray = np.zeros((shape.num_layers, shape.num_experts))

    def begin(self, phase: Phase) -> None:
        pass

    def observe(self, layer: int, ids: IntArray) -> None:
        self._uses[layer] += count_ids(ids, self._uses.shape[1])

    def keep_scores(self, layer: int) -> FloatArray:
        return self._uses

    def token_scores(self) -> TokenScores:
        return TokenScores(self._uses, -np.inf)


class ActivationAware:
    """arXiv 2401.14361 v3, Algorithm 1: out goes what the matched requests used least, late layers before early ones.

    keep = (pEAM[i,j] + eps) * (1 - i/L) / sum_j pEAM[i,j]. pEAM here has every row of the matches, those of layers that
    ran already too: they stand for the next token. Without a match the request's own matrix serves (v1, Algorithm 2).
    """

    name = "paper"
    step = 0

    def __init__(
        self, shape: MoeShape, collection: ActivationCollection, num_matches: int = NUM_MATCHES, eps: float = EPS
    ) -> None:
        self._collection = collection
        self._match = Match(collection)
        self._num_matches = num_matches
        self._eps = eps
        self._request = ActivationMatrix(shape)
        self._layer_decay: FloatArray = 1 - np.arange(shape.num_layers)[:, None] / float(shape.num_layers)
        self._scores: FloatArray | None = None  # None after an observation

    def begin(self, phase: Phase) -> None:
        self._match.restart()
        self._scores = None
        if phase == "prefill":
            self._request.clear()

    def observe(self, layer: int, ids: IntArray) -> None:
        self._match.record(layer, ids)
        self._request.record(layer, ids)
        self._scores = None

    def keep_scores(self, layer: int) -> FloatArray:
        if self._scores is None:
            nearest = self._match.nearest(self._num_matches)
            likely = self._collection.rows[nearest].sum(axis=0, dtype=float) if len(nearest) else self._request.counts
            self._scores = (normalise_rows(likely) + self._eps) * self._layer_decay
        return self._scores

    def token_scores(self) -> TokenScores:
        return TokenScores(self.keep_scores(len(self._layer_decay) - 1), -np.inf)


class NextUse:
    """Out goes the expert whose next use is expected last.

    keep = -(layers until the expert's layer is visited again + (1 - P) / rate * L). P is the probability that such a
    visit uses it: that of UseModel where the visit is of one token, as decode's are, and 1 - (1 - p)^n in the layers
    that a running pass of n tokens has not reached; rate is the share of later tokens that will use it. L is the number
    of layers that a step of decode visits: all, or those of the decoder. A layer of the encoder comes again with the
    next source.
    """

    name = "next-use"

    NEXT_SOURCE: Final = 1000  # steps until then, of which nobody knows the number: more than most answers have
    USED_PROBABILITY: Final = 1 / 3  # at least, of an expert that the running token uses, to be used by the next

    def __init__(self, shape: MoeShape, encoder_layers: int = 0) -> None:
        """encoder_layers: how many layers, the first ones, only a source visits."""
        layers = shape.num_layers
        self._encoder_layers = encoder_layers
        self.step = max(1, layers - encoder_layers)
        self._use = UseModel(layers, shape.num_experts, shape.top_k)
        self._no_use, self._wait = self._use.no_use, self._use.wait
        self._missed_visits: FloatArray = self._wait * -self.step  # -(1 - p) / rate * L
        ahead = np.arange(layers) - np.arange(layers)[:, None]
        self._until_source = np.where(np.arange(layers) < encoder_layers, self.NEXT_SOURCE * self.step, 0.0)[:, None]
        again = np.where(np.arange(layers) < encoder_layers, self.NEXT_SOURCE * self.step, ahead + self.step)
        self._until_visit = np.where(ahead > 0, ahead, again)[:, :, None].astype(np.float64)  # [running, layer, 1]
        self._scores: FloatArray = np.zeros_like(self._missed_visits)
        self._num_tokens = 1
        self._scored_layer = -1  # of what _scores holds; -1 after an observation

    def begin(self, phase: Phase) -> None:
        pass

    def observe(self, layer: int, ids: IntArray) -> None:
        self._use.observe(layer, ids)
        np.multiply(self._wait[layer], -self.step, out=self._missed_visits[layer])
        self._num_tokens = len(ids)
        self._scored_layer = -1

    def keep_scores(self, layer: int) -> FloatArray:
        if layer != self._scored_layer:
            np.subtract(self._missed_visits, self._until_visit[layer], out=self._scores)
            if self._num_tokens > 1:
                left = slice(layer + 1, self._encoder_layers if layer < self._encoder_layers else None)
                self._scores[left] = self._missed_visits[left] * self._no_use[left] ** (self._num_tokens - 1)
                self._scores[left] -= self._until_visit[layer, left]
            self._scored_layer = layer
        return self._scores

    def token_scores(self) -> TokenScores:
        """The device does not learn what the token's experts do to their probability: it takes them to be likely."""
        return TokenScores(self._missed_visits - self._until_source, (1 - 1 / self.USED_PROBABILITY) * self.step)


def make_policy(name: str, shape: MoeShape, collection: ActivationCollection, encoder_layers: int = 0) -> DevicePolicy:
    """encoder_layers: how many layers, the first ones, only a source visits. Raises UsageError for a name not in
    POLICIES."""
    if name == "lru":
        return LeastRecentlyUsed(shape)
    if name == "lfu":
        return LeastFrequentlyUsed(shape)
    if name == "paper":
        return ActivationAware(shape, collection)
    if name == "next-use":
        return NextUse(shape, encoder_layers)
    raise UsageError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
