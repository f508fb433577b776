"""From a prediction to queued reads: which experts are fetched ahead, and no more than the link has time for."""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np

from moeinf._native import Visit
from moeinf.errors import UsageError
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.policy.priority import layer_proximity, prefetch_priority
from moeinf.runtime.prefetch_gate import LEAST, PrefetchGate
from moeinf.runtime.recent_rate import RecentRate
from moeinf.types import FloatArray, IntArray, MoeShape

FEW_TOKENS: Final = 8  # of a step: of so many answers at most, or of a short prompt
MEASURED, NO_ADMISSION = ADMISSIONS = ("measured", "none")  # what is worth its read (prefetch_gate.py); everything
AT_LEAST: Final = 0.3  # probability: below it what many tokens may use is more often wasted than used


def admissions_of(given: str | None, *, prefetches: bool) -> tuple[str, ...]:
    """What --admission asks for, names with commas or all. Raises UsageError, also where nothing is read ahead."""
    if given is None:
        return (MEASURED,)
    if not prefetches:
        raise UsageError(f"--admission {given} is of what is read ahead, and nothing is; name a --predictor that reads")
    names = ADMISSIONS if given == "all" else tuple(dict.fromkeys(given.split(",")))
    for name in names:
        if name not in ADMISSIONS:
            raise UsageError(f"unknown --admission {name!r}; known: all, {', '.join(ADMISSIONS)}")
    return names


def prefetch_text(predictor: str, admission: str) -> str:
    """What tables and pictures call prefetch by this predictor."""
    return predictor if admission == MEASURED else f"{predictor}, admission {admission}"


class Link(Protocol):
    """What of the reader tells the rate of reads."""

    def bytes_read(self) -> int: ...

    def busy_seconds(self) -> float: ...


class Prefetcher:
    """After each routing: re-score the layers ahead, re-order what is queued, admit what fits the idle window.

    Source: arXiv 2401.14361 v1, Algorithm 1. The gate is ours: prefetches that outlast the link's idle window delay the
    demand reads behind them. Without admission everything is read ahead for which there is room, the likeliest first,
    as in the paper.
    """

    def __init__(
        self,
        tier: ExpertTier,
        predictor: Predictor,
        link: Link,
        shape: MoeShape,
        encoder_layers: int = 0,
        slices: int = 1,
        *,
        tries: bool = False,
        admission: str = MEASURED,
    ) -> None:
        """encoder_layers: how many of the layers, the first ones, belong to the encoder.

        slices: of an expert; where there are several, each counts as an expert for all but the predictor.

        tries: the clock decides which steps of few tokens go with prefetch; else all do. Longer prompts always do, and
        so does everything without admission.
        """
        self._prefetches, self._idle, self._stats = tier.prefetches, tier.idle, tier.stats
        self._clock = tier.profiler.clock
        self._takes_all = admission == NO_ADMISSION
        tries = tries and not self._takes_all
        self._gate = PrefetchGate(shape.num_experts * slices, tries=tries, clock=self._clock)
        self._encoder_layers = encoder_layers
        self._predictor = predictor
        self._link = link
        self._num_experts = shape.num_experts * slices
        self._slices = slices
        self._proximity = layer_proximity(shape.num_layers)
        self._expert_bytes = tier.sizes.mean_bytes
        self._rate = RecentRate()
        self._wants_guesses = predictor.wants_guesses
        self._last_layer = shape.num_layers - 1
        self._many = False  # whether the layer that ran last had so many tokens that it went with prefetch

    @property
    def wants_expectations(self) -> bool:
        """Whether the model is to guess at the routing of the next layer, for the tokens that run."""
        return self._wants_guesses and (self._many or self._gate.open)

    def after_routing(self, visit: Visit) -> None:
        """Call when a visit has begun, so that its demand is queued: prefetches come behind it."""
        few = visit.num_tokens <= FEW_TOKENS
        self._many = not few
        if few:
            self._gate.learn(visit.layer, visit.keys, visit.num_absent)
            if not self._goes_with(visit.layer):
                return
        likelihood = self._predict(visit.layer)
        if likelihood is None or not len(likelihood):
            return
        if self._takes_all:
            self._fetch_all(visit.layer, _of_any(likelihood, visit.num_tokens))
        elif not few:
            self._read_ahead(visit, likelihood)
        else:
            self._fetch_likely(visit.layer, _of_any(likelihood, visit.num_tokens))

    def _predict(self, layer: int) -> FloatArray | None:
        likelihood = self._predictor.predict(layer)
        return likelihood if likelihood is None or self._slices == 1 else np.repeat(likelihood, self._slices, axis=1)

    def _goes_with(self, layer: int) -> bool:
        """Whether the running token, which has come to `layer`, goes with prefetch."""
        if layer == self._encoder_layers:
            self._gate.first_layer(self._stats)
        going = self._gate.open
        if layer == self._last_layer:
            self._gate.last_layer(self._stats, full=self._prefetches.slots_are_full)
        return going

    def experts_within(self, seconds: float) -> float:
        """How many experts the link reads in that time, at the rate measured of late; 1 before any."""
        bytes_per_s = self._rate.per_second(self._link.bytes_read(), self._link.busy_seconds())
        return 1.0 if bytes_per_s is None else seconds * bytes_per_s / self._expert_bytes

    def _fetch_likely(self, layer: int, likelihood: FloatArray) -> None:
        prefetches = self._prefetches
        queued = prefetches.queued()
        window = self.experts_within(self._idle.seconds)
        budget = min(math.ceil(window) - len(queued), prefetches.room)
        if not len(queued) and budget <= 0:
            return
        if len(queued):
            self._reprioritise(layer, likelihood, queued)
        keys, surest_first = prefetches.likeliest(layer, likelihood, LEAST, budget)
        if keys and (worth := self._gate.choose(keys, surest_first, len(queued), window)):
            self._submit([keys[at] for at in worth], [surest_first[at] for at in worth])

    def _fetch_all(self, layer: int, likelihood: FloatArray) -> None:
        prefetches = self._prefetches
        if len(queued := prefetches.queued()):
            self._reprioritise(layer, likelihood, queued)
        keys, surest_first = prefetches.likeliest(layer, likelihood, 0.0, prefetches.room)
        if keys:
            self._submit(keys, surest_first)

    def _reprioritise(self, layer: int, likelihood: FloatArray, queued: IntArray) -> None:
        first_key = (layer + 1) * self._num_experts
        seen = queued[queued < first_key + likelihood.size]
        priorities = prefetch_priority(likelihood, self._proximity).ravel()
        self._prefetches.reprioritise(seen, priorities[seen - first_key])

    def _submit(self, keys: list[int], priorities: list[float]) -> None:
        clock = self._clock
        began_s = clock()
        self._prefetches.submit(np.array(keys), np.array(priorities))
        self._gate.submitted(self.experts_within(clock() - began_s), len(keys))

    def _read_ahead(self, visit: Visit, likelihood: FloatArray) -> None:
        """A pass of many tokens reads the next layer while this one computes: all that any token is likely to use."""
        if visit.layer + 1 == self._encoder_layers:
            return  # the pass ends
        touched = _of_any(likelihood[0], visit.num_tokens)
        likely = np.flatnonzero(touched > AT_LEAST)
        surest_first = likely[np.argsort(-touched[likely], kind="stable")]
        visit.read_ahead((visit.layer + 1) * self._num_experts + surest_first)


def _of_any(likelihood: FloatArray, num_tokens: int) -> FloatArray:
    """Of each expert, that any of so many tokens uses it, of which each does so by `likelihood`."""
    return likelihood if num_tokens == 1 else 1 - (1 - np.minimum(likelihood, 1.0)) ** num_tokens
