"""A trace, pass by pass, through simulated tiers, all of which see the same policy and predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from moeinf.bench.simulation.run import UNTIMED, PhaseResult, Results, SimulatedRun, Timing
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.policy_protocol import EvictionPolicy, Listener, Predictor
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.prefetch import MEASURED
from moeinf.traces.guesses import Guesses
from moeinf.traces.trace import Trace, passes_of
from moeinf.types import Float32Array, FloatArray, IntArray, Phase

_NONE: Final = -2  # no layer; -1 stands for what is in front of the first


class SharedPrediction(Predictor):
    """A predictor that several prefetchers ask, and that answers once."""

    def __init__(self, predictor: Predictor) -> None:
        self.name, self.wants_guesses = predictor.name, predictor.wants_guesses
        self._predictor = predictor
        self._layer = _NONE
        self._likelihood: FloatArray | None = None

    def begin(self, phase: Phase) -> None:
        self._predictor.begin(phase)

    def observe(self, layer: int, ids: IntArray) -> None:
        self._predictor.observe(layer, ids)
        self._layer = _NONE

    def restart(self) -> None:
        self._predictor.restart()
        self._layer = _NONE

    def expect(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        self._predictor.expect(layer, ids, weights)

    def predict(self, layer: int) -> FloatArray | None:
        if layer != self._layer:
            self._layer, self._likelihood = layer, self._predictor.predict(layer)
        return self._likelihood


class Run(Protocol):
    """What a replay drives: a SimulatedRun, or one of baselines.py."""

    results: Results

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None: ...


class Meter(Protocol):
    def compare(self, layer: int, experts: IntArray) -> None:
        """Takes the experts [layers, top_k] of a single token before the visit of `layer`, which is routed."""
        ...


class SimulatedTier(NamedTuple):
    num_slots: int
    policy: EvictionPolicy
    sizes: SlotSizes | None = None  # of the slots; None: all have one


def replay(
    trace: Trace,
    tiers: Sequence[SimulatedTier],
    recorder: RequestRecorder | None = None,
    predictor: Predictor | None = None,
    timing: Timing = UNTIMED,
    prefill_tokens: int = 0,
    guesses: Guesses | None = None,
    admission: str = MEASURED,
) -> list[dict[Phase, PhaseResult]]:
    """What the tiers do, all in one pass. No tier changes what a policy sees, and one policy may serve several.

    prefill_tokens: see passes_of. guesses: what look-ahead is told, where the predictor has it. admission: one of
    runtime/prefetch.py. Where nothing is known of prefill, or there was none, all is decode.
    """
    shared = None if predictor is None else SharedPrediction(predictor)
    runs = [
        SimulatedRun(trace.shape, each.num_slots, each.policy, shared, timing, each.sizes, admission) for each in tiers
    ]
    policies = dict.fromkeys(each.policy for each in tiers)
    observers = [observer for observer in (recorder, *policies, shared) if observer is not None]
    return drive(trace, runs, observers, guesses, prefill_tokens)


def drive(
    trace: Trace,
    runs: Sequence[Run],
    observers: Sequence[Listener],
    guesses: Guesses | None,
    prefill_tokens: int,
    meter: Meter | None = None,
) -> list[dict[Phase, PhaseResult]]:
    """Tells the observers every routing, and every guess to those that want it, and lets the runs visit every layer."""
    expecting = [each for each in observers if each.wants_guesses]
    has_prefill = prefill_tokens > 0 or trace.passes is not None
    if trace.prompt_tokens is not None and not trace.prompt_tokens.any():
        has_prefill = False
    ascending = np.sort(trace.experts, axis=2)
    once = np.ones(trace.shape.top_k, np.int64)
    for begins, first, last in passes_of(trace, prefill_tokens):
        layers = np.flatnonzero(trace.experts[first, :, 0] >= 0).tolist()
        if begins:
            for observer in observers:
                observer.begin(begins)
            for run in runs:
                run.results.begin(begins if has_prefill else "decode")
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if expecting and guesses is not None and following is not None:
                guess = guesses.at(first, last, following)
                if guess is not None:
                    for observer in expecting:
                        observer.expect(following, *guess)
            ids = trace.experts[first:last, layer]
            for observer in observers:
                observer.observe(layer, ids)
            if last == first + 1:
                experts, counts = ascending[first, layer], once
                if meter is not None:
                    meter.compare(layer, trace.experts[first])
            else:
                experts, counts = np.unique(ids, return_counts=True)
            for run in runs:
                run.visit(layer, experts, counts, last - first)
        for run in runs:
            run.results.count_tokens(last - first)
    for run in runs:
        run.results.begin(None)
    return [run.results.of for run in runs]


def whole(result: dict[Phase, PhaseResult]) -> CacheStats:
    """All phases together."""
    stats = CacheStats()
    for phase in result.values():
        stats = stats.plus(phase.stats)
    return stats
