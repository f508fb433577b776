"""The simulator tells the truth: a run and the simulation of its trace give the same hits and misses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf._native import IdleWindow
from moeinf.bench.simulation.replay import SimulatedTier, replay
from moeinf.bench.simulation.run import UNTIMED, Timing
from moeinf.bench.simulation.simulate import sized_slots
from moeinf.bench.simulation.simulated_link import Clock, SimulatedLink
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, make_policy
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.policy.predictors import make_predictor
from moeinf.store.library import StoredModel
from moeinf.traces.guesses import guesses_of
from moeinf.traces.trace import Trace, load_trace
from moeinf.types import FloatArray, IntArray, Routing
from tests.support.mixed_gguf import wide_model, without_vocabulary

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"


def live(stats: GenerationStats) -> CacheStats:
    return stats.prefill_cache.plus(stats.decode_cache)


def answer_of(stored: StoredModel, trace: Path, **options: object) -> tuple[GenerationStats, int]:
    """What a recorded answer counted, and the number of slots: so many as let the prompt through without waves."""
    (stored.path / "eamc.npz").unlink(missing_ok=True)  # the simulation knows no earlier request either
    with Model(stored, RuntimeConfig.of(**{"expert_cache": "40%", "trace": str(trace)} | options)) as model:
        num_slots, shape = model.tier.num_slots, stored.manifest.moe
        of_each = np.bincount(model.plan.sizes.order[:num_slots])
        assert 2 * shape.num_experts < of_each.min() and num_slots < shape.total_experts
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=40, stop=()))
    return answer.stats, num_slots


def simulated(
    trace: Trace, share: float, num_slots: int, policy: str, predictor: str, timing: Timing = UNTIMED
) -> tuple[CacheStats, float]:
    """What the simulation counts, and the seconds that it takes. share: of the bytes of experts, in percent."""
    found, sizes = sized_slots(trace, share)
    assert found == num_slots or not trace.expert_bytes, "the engine has other slots"
    collection = ActivationCollection(trace.shape)
    recorder = RequestRecorder(trace.shape, collection.add)
    (phases,) = replay(
        trace,
        [SimulatedTier(num_slots, make_policy(policy, trace.shape, collection, num_slots), sizes)],
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
    ran, (replayed, _) = live(stats), simulated(load_trace(tmp_path), 40, num_slots, policy, "none")
    assert (ran.hits, ran.misses, ran.demand_reads) == (replayed.hits, replayed.misses, replayed.demand_reads)
    assert stats.decode_cache.hits and stats.decode_cache.misses


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """A model whose layers have experts of three sizes, in files of its own."""
    folder = tmp_path_factory.mktemp("mixed")
    types = ("Q4_K", "Q4_K", "Q8_0", "Q2_K", "Q3_K", "Q2_K", "BF16", "Q6_K", "Q8_0")  # a layer's gate, up and down
    with pytest.MonkeyPatch.context() as patch:
        without_vocabulary(patch)
        wide_model(folder, types, num_layers=9)
        return pull(str(folder / "wide.gguf"), PullOptions(repack=True), home=folder / "own")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [75])
def test_so_they_do_where_slots_are_of_three_sizes(mixed: StoredModel, policy: str, share: int, tmp_path: Path) -> None:
    stats, num_slots = answer_of(mixed, tmp_path, policy=policy, prefetch=False, expert_cache=f"{share}%")
    trace = load_trace(tmp_path)
    assert trace.expert_bytes == tuple(layout.stride_bytes for layout in mixed.manifest.layers)
    assert len(sized_slots(trace, share)[1].class_bytes) == 3
    ran, (replayed, _) = live(stats), simulated(trace, share, num_slots, policy, "none")
    counters = ("hits", "misses", "demand_reads", "demand_bytes")
    assert [getattr(ran, name) for name in counters] == [getattr(replayed, name) for name in counters]
    assert stats.decode_cache.hits and stats.decode_cache.misses


class TimedDisk(SimulatedLink):
    """Reads the files of a store by the clock of a simulation: what has landed by then is copied into its slot."""

    def __init__(
        self, clock: Clock, read_s: FloatArray, expert_bytes: IntArray, files: Sequence[Path], memory: Any
    ) -> None:
        super().__init__(clock, read_s.tolist(), expert_bytes.tolist())
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

    def submit_pieces(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: IntArray,
        priorities: FloatArray,
    ) -> None:
        """An expert is one piece, a whole number of blocks."""
        for place, key in enumerate(keys.tolist()):
            row = slice(place, place + 1)
            size = int(num_bytes[place, 0])
            self.submit(np.array([key]), files[row, 0], offsets[row, 0], destinations[row, 0], size, priorities[row])

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
@pytest.mark.parametrize("name", ["demo", "mixed"])
def test_with_prefetch_too_where_time_is_fixed(
    name: str,
    predictor: str,
    layer_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The model runs on a disk of one second a read and layers of layer_s, on a clock that only they move."""
    timing, clock, share = Timing(1.0, layer_s), Clock(), 40 if name == "demo" else 75
    stored: StoredModel = request.getfixturevalue(name)
    moe = stored.manifest.moe
    layer_bytes = np.array([stored.manifest.layout_of(layer).stride_bytes for layer in range(moe.num_layers)])
    expert_bytes = np.repeat(layer_bytes, moe.num_experts)

    def timed_disk(files: Sequence[Path], sizes: object, arena: Any, *others: object) -> TimedDisk:
        read_s = timing.read_s * (expert_bytes / layer_bytes.mean())
        return TimedDisk(clock, read_s, expert_bytes, files, arena.array())

    run = StreamedExperts.run

    def timed_run(self: StreamedExperts, layer: int, hidden: Any, routing: Routing, out: Any) -> None:
        run(self, layer, hidden, routing, out)
        clock.now += timing.layer_s

    monkeypatch.setattr("moeinf.engine.cpu.open_reader", timed_disk)
    monkeypatch.setattr("moeinf.runtime.cache.tier.IdleWindow", lambda: IdleWindow(clock))
    monkeypatch.setattr(StreamedExperts, "run", timed_run)
    stats, num_slots = answer_of(
        stored, tmp_path, policy="next-use", predictor=predictor, expert_cache=f"{share}%", device="cpu"
    )
    ran = live(stats)
    replayed, seconds = simulated(load_trace(tmp_path), share, num_slots, "next-use", predictor, timing)
    counters = ("hits", "misses", "late_hits", "prefetches", "prefetches_used", "prefetches_wasted", "demand_reads")
    assert {name: getattr(ran, name) for name in counters} == {name: getattr(replayed, name) for name in counters}
    assert seconds == pytest.approx(clock.now)
    assert (ran.prefetches > 0) == (predictor != "none") and stats.decode_cache.misses
