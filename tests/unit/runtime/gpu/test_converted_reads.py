"""Experts that are converted behind their reads: right at the moment of use, however late reads and threads are."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import ExpertReadError
from moeinf.runtime.gpu.converted_reads import ConvertedReads
from moeinf.types import ByteArray, FloatArray, IntArray
from tests.support.fake_machine import EQUAL, STRIDE, Machine
from tests.support.fake_reader import LAYOUT, SHAPE, FakeReader

TOTAL = SHAPE.total_experts


class Stored(FakeReader):
    """Reads experts that have to be converted: with a half added."""

    def land(self, keys: list[int]) -> IntArray:
        places = [self.queued[key][0] for key in keys]
        landed = super().land(keys)
        for place in places:
            self._memory[place : place + STRIDE].view(np.float32)[:] += 0.5
        return landed


class Places:
    """moeinf.runtime.io.read_places.PlacedReads."""

    def __init__(self, disk: FakeReader) -> None:
        self._disk = disk

    def submit(self, keys: IntArray, slots: IntArray, priorities: FloatArray) -> None:
        layers, experts = np.divmod(keys, SHAPE.num_experts)
        self._disk.submit(keys, layers, experts * LAYOUT.stride_bytes, slots, STRIDE, priorities)


class Converting(Machine):
    """A machine whose disk holds experts in another form."""

    seconds = 0.0

    def opened(self, seed: int, failing: frozenset[int]) -> ConvertedReads:
        self.converted: list[int] = []
        self._random = random.Random(seed)
        self.disk = disk = Stored(self.host, seed, failing)
        places: object = Places(disk)
        slots = self.host, EQUAL.by_key(SHAPE.num_experts)
        return ConvertedReads(disk, places, slots, lambda *given: self.convert(*given), 2)  # type: ignore[arg-type]

    def convert(self, key: int, slot: ByteArray) -> None:
        time.sleep(self._random.choice([0, 0, 0.0003]))
        assert (slot.view(np.float32) == key + 0.5).all(), "converted twice, or before it was read"
        slot.view(np.float32)[:] -= 0.5
        self.converted.append(key)


passes = st.lists(st.tuples(st.sampled_from([1, 1, 2, 5]), st.integers(0, 2**32 - 1)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.tuples(st.integers(2, 18), st.integers(1, 18)),
    seed=st.integers(0, 999),
    passes=passes,
    prefetching=st.booleans(),
    failing=st.frozensets(st.integers(0, TOTAL - 1), max_size=2),
)
def test_any_schedule_computes_what_was_converted(
    slots: tuple[int, int], seed: int, passes: list[tuple[int, int]], prefetching: bool, failing: frozenset[int]
) -> None:
    machine = Converting(*slots, seed=seed, failing=failing)
    tier = machine.tier
    for tokens, routing_seed in passes:
        rng = np.random.default_rng(routing_seed)
        for layer in range(SHAPE.num_layers):
            ids = np.array([rng.permutation(SHAPE.num_experts)[: SHAPE.top_k] for _ in range(tokens)])
            try:
                machine.visit(layer, ids)
            except ExpertReadError:
                assert failing & set((layer * SHAPE.num_experts + ids).ravel().tolist())
            machine.check()
            if prefetching and layer + 1 < SHAPE.num_layers:
                absent = np.flatnonzero(~tier.prefetches.known(layer + 1)[0])[: max(0, tier.prefetches.room)]
                tier.prefetches.submit((layer + 1) * SHAPE.num_experts + absent, rng.random(len(absent)))
                queued = tier.prefetches.queued()
                tier.prefetches.reprioritise(queued, rng.random(len(queued)))
    assert machine.link.close()


def test_a_host_that_holds_all_converts_each_expert_once() -> None:
    machine = Converting(4, TOTAL)
    machine.slots.load_all(lambda done, total: None)
    for layer in (0, 1, 2, 0, 1, 2):
        machine.visit(layer, np.array([[0, 3], [5, 1]]))
    assert sorted(machine.converted) == list(range(TOTAL))
    assert machine.link.close()


def test_what_a_conversion_raises_is_not_lost() -> None:
    machine = Converting(4, 4)

    def fail(key: int, slot: ByteArray) -> None:
        raise RuntimeError("a fault of the program")

    machine.convert = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a fault of the program"):
        machine.visit(0, np.array([[0, 3]]))
    machine.link.close()
