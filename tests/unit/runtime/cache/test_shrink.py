"""Slots that a tier gives up, or lends to somebody else, while it runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.runtime.cache.table import NO_SLOT
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.types import IntArray
from tests.support.fake_machine import Machine
from tests.support.fake_reader import LAYOUT, SHAPE, SLOTS_START, Tier, make_tier, visit

STRIDE = LAYOUT.stride_bytes
TOTAL = SHAPE.total_experts


def offsets_held(tier: Tier) -> IntArray:
    return np.array(list(tier.snapshot().offsets.values()), np.int64)


@settings(max_examples=100, deadline=None)
@given(
    num_slots=st.integers(3, 18),
    left=st.integers(2, 18),
    seed=st.integers(0, 999),
    prefetching=st.booleans(),
    failing=st.frozensets(st.integers(6, 11), max_size=2),
)
def test_a_shrunk_tier_goes_on_in_its_lowest_slots(
    num_slots: int, left: int, seed: int, prefetching: bool, failing: frozenset[int]
) -> None:
    left = min(left, num_slots)
    tier, reader, policy = make_tier(num_slots, seed=seed, failing=failing)
    visit(tier, policy, 0, np.array([[0, 1], [2, 3], [4, 5]]))
    if prefetching and tier.prefetches.room > 0:
        tier.prefetches.submit(
            np.arange(6, 12)[: tier.prefetches.room], np.linspace(0.9, 0.4, min(6, tier.prefetches.room))
        )
    held = {key: offset for key, offset in tier.snapshot().offsets.items() if key < 6}
    tier.shrink(left)
    tier.check_integrity()
    border = SLOTS_START + left * STRIDE
    assert tier.num_slots == left and (offsets_held(tier) < border).all()
    assert all(destination < border for destination, _ in reader.queued.values()), "a read goes on into a lost slot"
    kept = {key: offset for key, offset in held.items() if offset < border}
    assert kept.items() <= tier.snapshot().offsets.items(), "what may stay does not move"
    tier.memory[border:] = 0xEE  # somebody else's now
    for layer in (2, 0, 2):
        visit(tier, policy, layer, np.array([[0, 1], [2, 3], [4, 5]]))
        tier.check_integrity()
    assert (tier.memory[border:] == 0xEE).all()


def test_shrinking_to_the_same_number_changes_nothing() -> None:
    tier, _, policy = make_tier(6)
    visit(tier, policy, 0, np.array([[0, 1], [2, 3]]))
    before = tier.snapshot()
    tier.shrink(6)
    assert tier.snapshot() == before and tier.num_slots == 6


def test_a_tier_that_held_everything_reads_again_what_it_gave_up() -> None:
    tier, reader, policy = make_tier(TOTAL)
    tier.load_all(lambda done, total: None)
    tier.shrink(TOTAL - 3)
    assert not tier.all_resident and len(tier.snapshot().resident) == TOTAL - 3
    visit(tier, policy, 2, np.array([[3, 4], [4, 5]]))
    assert reader.submitted == TOTAL + 3 and tier.stats.misses == 4


def test_a_read_that_cannot_be_cancelled_is_waited_for() -> None:
    tier, reader, _ = make_tier(6, failing=frozenset([7]))
    reader.poll = lambda: ReadDone(np.empty(0, np.int64), np.empty(0, np.int64))  # type: ignore[method-assign]
    reader.cancel = lambda keys: np.empty(0, np.int64)  # type: ignore[method-assign]
    tier.prefetches.submit(np.array([6, 7]), np.array([0.9, 0.8]))
    tier.shrink(1)
    assert 7 not in reader.queued and tier.stats.prefetches_wasted == 1
    tier.check_integrity()


@settings(max_examples=60, deadline=None)
@given(device_slots=st.integers(3, 18), left=st.integers(2, 18), host_slots=st.integers(1, 18), seed=st.integers(0, 99))
def test_a_device_tier_shrinks_over_its_host(device_slots: int, left: int, host_slots: int, seed: int) -> None:
    machine = Machine(device_slots, host_slots, seed=seed)
    ids = np.array([[0, 1], [2, 3], [4, 5]])
    machine.visit(0, ids)
    room = max(0, machine.tier.prefetches.room)
    machine.tier.prefetches.submit(np.arange(6, 12)[:room], np.full(min(6, room), 0.5))
    machine.tier.shrink(min(left, device_slots))
    machine.check()
    machine.copies.order_compute()
    machine.copier.compute()  # the device has done what was submitted: the memory may go
    border = min(left, device_slots) * STRIDE
    machine.device[border:] = 0xEE
    for layer in (1, 2, 0):
        machine.visit(layer, ids)
        machine.check()
    assert (machine.device[border:] == 0xEE).all()


def test_nothing_is_on_its_way_in_a_tier_whose_slots_are_leased() -> None:
    tier, reader, policy = make_tier(12, seed=1)
    visit(tier, policy, 0, np.array([[0, 1]]))
    tier.prefetches.submit(np.array([6, 7, 8]), np.array([0.9, 0.8, 0.7]))
    numbers = tier.lease().slots
    now = tier.snapshot()
    assert not now.loading and not reader.queued and not now.reserved
    assert set(np.flatnonzero(numbers != NO_SLOT).tolist()) == now.offsets.keys() == now.resident
    tier.check_integrity()


@pytest.mark.parametrize("num_slots", [4, TOTAL])
def test_a_tier_takes_over_what_somebody_else_has_brought_into_its_slots(num_slots: int) -> None:
    tier, reader, policy = make_tier(num_slots)
    visit(tier, policy, 0, np.array([[0, 1]]))
    lease = tier.lease()
    slots = np.full(TOTAL, NO_SLOT)
    brought = [6, 7, 3, 2] if num_slots == 4 else list(range(TOTAL))[::-1]
    for slot, key in enumerate(brought):
        slots[key] = slot
        offset = SLOTS_START + slot * STRIDE
        tier.memory[offset : offset + STRIDE].view(np.float32)[:] = key
    lease.count(activations=20, misses=[4])
    tier.reclaim(slots)
    tier.check_integrity()
    assert tier.snapshot().offsets == {
        key: SLOTS_START + slot * STRIDE for slot, key in enumerate(brought)
    } and tier.all_resident == (num_slots == TOTAL)
    assert (tier.stats.hits, tier.stats.misses, tier.stats.demand_reads) == (16, 6, 6)
    submitted = reader.submitted
    visit(tier, policy, 0, np.array([[2, 3]]))
    visit(tier, policy, 1, np.array([[0, 1]]))
    assert reader.submitted == submitted
    visit(tier, policy, 2, np.array([[0, 1]]))
    tier.check_integrity()
