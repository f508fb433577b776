"""From recorded states to maps beside the store: the earlier requests train them, the later ones measure them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from moeinf.bench.simulation.quality import Quality, QualityMeter
from moeinf.bench.simulation.replay import drive, replay
from moeinf.bench.simulation.run import SimulatedRun, Timing
from moeinf.bench.simulation.simulate import slots_of
from moeinf.bench.tuning.tune import divided
from moeinf.runtime.experts import Observer
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import NextUse
from moeinf.runtime.policy.predictors import DEFAULT, TUNED, look_ahead_of, make_predictor, maps_of
from moeinf.runtime.policy.state_maps import StateMaps, TimeGain
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.traces.guesses import guesses_of
from moeinf.traces.trace import Trace, cut

PERCENT: Final = 33  # of the experts, resident
COMPUTES: Final = (0.4, 1.0, 3.0)  # what a layer computes, in times of the read of an expert
CANDIDATES: Final = (TUNED, f"{DEFAULT}+{TUNED}")
COMPARED: Final = (DEFAULT, "previous-token", "eamc", TUNED)
MOST_TIMED: Final = 2000  # tokens

Recalls = dict[str, list[Quality]]  # by predictor; of TUNED by what it says in front of attention, too


def missing(trace: Trace) -> str:
    """Why nothing can be learned from a trace, and what to do; "" where it can."""
    if trace.states is None:
        return "no maps for prefetch: the requests have no states; record some with --trace-states in a new folder"
    if trace.guesses is None:
        return (
            "no maps for prefetch: the requests have no guesses of look-ahead to compare with; record some with "
            f"--trace-states --expert-cache {PERCENT}% in a new folder"
        )
    return ""


def learn_maps(
    trace: Trace, model_id: str, seed: int, progress: Callable[[str, int, int], None]
) -> tuple[StateMaps, Recalls]:
    """Of a trace of which nothing is `missing`. progress(what is done, so far, in all)."""
    from moeinf.bench.tuning.map_training import train_maps  # loads torch

    earlier, later = divided(trace)
    weights = train_maps(earlier, seed, lambda done, whole: progress("learning maps", done, whole))
    part = cut(later, MOST_TIMED)
    nothing = TimeGain((), (), (), TUNED, part.num_requests, part.num_tokens)
    maps = StateMaps(model_id, trace.shape, weights, nothing)
    times = {}
    for number, name in enumerate((DEFAULT, *CANDIDATES)):
        progress("timing maps", number, 1 + len(CANDIDATES))
        times[name] = token_reads(part, name, maps)
    best = min(CANDIDATES, key=lambda name: sum(np.divide(times[name], times[DEFAULT])))
    gain = TimeGain(COMPUTES, times[DEFAULT], times[best], best, part.num_requests, part.num_tokens)
    return StateMaps(model_id, trace.shape, weights, gain), recalls(part, maps)


def token_reads(trace: Trace, name: str, maps: StateMaps) -> tuple[float, ...]:
    """The time of a decoded token under a predictor on each machine, in reads of an expert."""
    found = []
    for compute in COMPUTES:
        predictor = make_predictor(name, trace.shape, collection := ActivationCollection(trace.shape), maps)
        (result,) = replay(
            trace,
            [slots_of(trace.shape, PERCENT)],
            [NextUse(trace.shape)],
            RequestRecorder(trace.shape, collection.add),
            predictor,
            Timing(1.0, compute),
            guesses=guesses_of(trace, None),
        )
        found.append(round((result.get("decode") or next(iter(result.values()))).token_s, 4))
    return tuple(found)


def recalls(trace: Trace, maps: StateMaps) -> Recalls:
    """How good predictions are after the routing of a layer, and those of the maps in front of its attention, too."""
    found: Recalls = {}
    for name in COMPARED:
        late, early = recall_of(trace, name, maps)
        found |= {name: late} | ({f"{name}, early": early} if early else {})
    return found


def recall_of(trace: Trace, name: str, maps: StateMaps) -> tuple[list[Quality], list[Quality]]:
    """Of one predictor: after a layer's routing, and in front of its attention, where that layer itself is nearest."""
    shape, collection, policy = trace.shape, ActivationCollection(trace.shape), NextUse(trace.shape)
    run = SimulatedRun(shape, slots_of(shape, PERCENT), policy)
    predictor = make_predictor(name, shape, collection, maps)
    assert predictor is not None
    late, early = (QualityMeter(shape, run, predictor) for _ in range(2))
    seer, states = maps_of(predictor), trace.states

    def before(first: int, last: int, layer: int) -> None:
        assert seer is not None and states is not None
        seer.see(layer, states[first:last, layer].astype(np.float32))
        if last == first + 1:
            early.compare(layer - 1, trace.experts[first])

    observers: list[Observer] = [RequestRecorder(shape, collection.add), policy, predictor]
    told = None if seer is None else before
    drive(trace, [run], observers, look_ahead_of(predictor), guesses_of(trace, None), 0, late, told)
    return late.result(), early.result()
