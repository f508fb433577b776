"""The simulator tells the truth: a run and the simulation of its trace give the same hits and misses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf._native import IdleWindow
from moeinf.bench.simulation.link import Clock, SimulatedLink
from moeinf.bench.simulation.replay import replay
from moeinf.bench.simulation.run import UNTIMED, Timing
from moeinf.config import RuntimeConfig
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.io.protocol import ReadDone
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, make_policy
from moeinf.runtime.policy.predictors import make_predictor
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.store.library import StoredModel
from moeinf.traces.guesses import guesses_of
from moeinf.traces.trace import Trace, load_trace
from moeinf.types import FloatArray, IntArray, Routing

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"


def live(stats: GenerationStats) -> CacheStats:
    return stats.prefill_cache.plus(stats.decode_cache)


def answer_of(stored: StoredModel, trace: Path, **options: object) -> tuple[GenerationStats, int]:
    """What a recorded answer counted, and the number of slots: so many as let the prompt through without waves."""
    (stored.path / "eamc.npz").unlink(missing_ok=True)  # the simulation knows no earlier request either
    with Model(stored, RuntimeConfig.of(expert_cache="40%", trace=str(trace), **options)) as model:
        num_slots, shape = model.tier.num_slots, stored.manifest.moe
        assert 2 * shape.num_experts < num_slots < shape.total_experts
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=40, stop=()))
    return answer.stats, num_slots


def simulated(
    trace: Trace, num_slots: int, policy: str, predictor: str, timing: Timing = UNTIMED
) -> tuple[CacheStats, float]:
    """What the simulation counts, and the seconds that it takes."""
    collection = ActivationCollection(trace.shape)
    recorder = RequestRecorder(trace.shape, collection.add)
    (phases,) = replay(
        trace,
        [num_slots],
        [make_policy(policy, trace.shape, collection, num_slots)],
        recorder,
        make_predictor(predictor, trace.shape, collection),
        timing,
        guesses=guesses_of(trace, None),
    )
    both = phases["prefill"], phases["decode"]
    return both[0].stats.plus(both[1].stats), sum(phase.seconds for phase in both)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_and_the_simulation_of_its_trace_hit_and_miss_alike(
    demo: StoredModel, policy: str, tmp_path: Path
) -> None:
    """Without prefetch, whose time is the machine's."""
    stats, num_slots = answer_of(demo, tmp_path, policy=policy, prefetch=False)
    ran, (replayed, _) = live(stats), simulated(load_trace(tmp_path), num_slots, policy, "none")
    assert (ran.hits, ran.misses, ran.demand_reads) == (replayed.hits, replayed.misses, replayed.demand_reads)
    assert stats.decode_cache.hits and stats.decode_cache.misses


class TimedDisk(SimulatedLink):
    """Reads the files of a store by the clock of a simulation: what has landed by then is copied into its slot."""

    def __init__(self, clock: Clock, read_s: float, files: Sequence[Path], memory: Any) -> None:
        super().__init__(clock, read_s)
        self._files, self._memory = [os.open(file, os.O_RDONLY) for file in files], memory
        self._places: dict[int, tuple[int, int, int, int]] = {}

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        for key, *place in zip(keys.tolist(), files.tolist(), offsets.tolist(), destinations.tolist(), strict=True):
            self._places[key] = (*place, num_bytes)
        super().submit(keys, files, offsets, destinations, num_bytes, priorities)

    def wait_any(self, keys: IntArray) -> IntArray:
        return self._copied(super().wait_any(keys))

    def poll(self) -> ReadDone:
        return ReadDone(self._copied(super().poll().done), np.empty(0, np.int64))

    def close(self) -> bool:
        for file in self._files:
            os.close(file)
        return True

    def _copied(self, keys: IntArray) -> IntArray:
        for key in keys.tolist():
            file, offset, destination, num_bytes = self._places.pop(key)
            block = np.frombuffer(os.pread(self._files[file], num_bytes, offset), np.uint8)
            self._memory[destination : destination + len(block)] = block
        return keys


@pytest.mark.parametrize("predictor", ["none", "cross-layer", "look-ahead", "look-ahead+frequency"])
@pytest.mark.parametrize("layer_s", [0.37, 1.7])
def test_with_prefetch_too_where_time_is_fixed(
    demo: StoredModel, predictor: str, layer_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model runs on a disk of one second a read and layers of layer_s, on a clock that only they move."""
    timing, clock = Timing(1.0, layer_s), Clock()

    def timed_disk(files: Sequence[Path], sizes: object, arena: Any, *others: object) -> TimedDisk:
        return TimedDisk(clock, timing.read_s, files, arena.array())

    run = StreamedExperts.run

    def timed_run(self: StreamedExperts, layer: int, hidden: Any, routing: Routing, out: Any) -> None:
        run(self, layer, hidden, routing, out)
        clock.now += timing.layer_s

    monkeypatch.setattr("moeinf.engine.cpu.open_reader", timed_disk)
    monkeypatch.setattr("moeinf.runtime.cache.tier.IdleWindow", lambda: IdleWindow(clock))
    monkeypatch.setattr(StreamedExperts, "run", timed_run)
    stats, num_slots = answer_of(demo, tmp_path, policy="next-use", predictor=predictor)
    ran = live(stats)
    replayed, seconds = simulated(load_trace(tmp_path), num_slots, "next-use", predictor, timing)
    counters = ("hits", "misses", "late_hits", "prefetches", "prefetches_used", "prefetches_wasted", "demand_reads")
    assert {name: getattr(ran, name) for name in counters} == {name: getattr(replayed, name) for name in counters}
    assert seconds == pytest.approx(clock.now)
    assert (ran.prefetches > 0) == (predictor != "none") and stats.decode_cache.misses
