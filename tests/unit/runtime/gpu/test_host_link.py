"""A device tier over host slots over a disk: what is computed is right, however late reads and copies are."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import ReadFailure
from moeinf.errors import ExpertReadError
from moeinf.runtime.gpu.host_link import HostLink
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.eviction import POLICIES
from tests.support.fake_device import address_of
from tests.support.fake_machine import STRIDE, Machine
from tests.support.fake_reader import SHAPE, SLOTS_START, sizes_of

TOTAL = SHAPE.total_experts
EMPTY = np.empty(0, np.int64)


def submit(link: HostLink, keys: list[int], priorities: list[float] | float) -> None:
    """Asks for `keys`, each into the device slot of its number."""
    array = np.array(keys)
    wanted = np.broadcast_to(np.array(priorities, np.float64), array.shape)
    link.submit(array, array // SHAPE.num_experts, array, array * STRIDE, STRIDE, wanted)


passes = st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 5]), st.integers(0, 2**32 - 1)), min_size=1, max_size=10)


@settings(max_examples=250, deadline=None)
@given(
    device_slots=st.integers(2, 18),
    host_slots=st.integers(1, 18),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 999),
    passes=passes,
    prefetching=st.booleans(),
    filled=st.booleans(),
    patient=st.booleans(),
    failing=st.frozensets(st.integers(0, TOTAL - 1), max_size=2),
    large=st.just(frozenset[int]()) | st.frozensets(st.integers(0, SHAPE.num_layers - 1)),
    alike=st.booleans(),
)
def test_any_schedule_computes_the_right_weights(
    device_slots: int,
    host_slots: int,
    policy: str,
    seed: int,
    passes: list[tuple[int, int]],
    prefetching: bool,
    filled: bool,
    patient: bool,
    failing: frozenset[int],
    large: frozenset[int],
    alike: bool,
) -> None:
    """Slots are of one size or of two, on the host those of the device or all as large as the largest."""
    sizes = sizes_of(large)
    behind = sizes if alike else sizes.equal()
    device_slots, failing = max(device_slots, sizes.least_slots), frozenset() if filled else failing
    host_slots = max(host_slots, behind.least_slots - SHAPE.top_k + 1)
    machine = Machine(
        device_slots, host_slots, policy=policy, seed=seed, failing=failing, sizes=sizes, host_sizes=behind
    )
    machine.copier.patient = patient
    tier = machine.tier
    if filled:
        machine.slots.load_all(lambda done, total: None)
    activations = 0
    for tokens, routing_seed in passes:
        rng = np.random.default_rng(routing_seed)
        for layer in range(SHAPE.num_layers):
            ids = np.array([rng.permutation(SHAPE.num_experts)[: SHAPE.top_k] for _ in range(tokens)])
            try:
                machine.visit(layer, ids)
                activations += ids.size
            except ExpertReadError:
                assert failing & set((layer * SHAPE.num_experts + ids).ravel().tolist())
                activations += ids.size
            machine.check()
            if prefetching and layer + 1 < SHAPE.num_layers:
                absent = np.flatnonzero(~tier.prefetches.known(layer + 1)[0])[: max(0, tier.prefetches.room)]
                tier.prefetches.submit((layer + 1) * SHAPE.num_experts + absent, rng.random(len(absent)))
                queued = tier.prefetches.queued()
                tier.prefetches.reprioritise(queued, rng.random(len(queued)))
                machine.check()
    stats = tier.stats
    assert stats.hits + stats.misses == activations
    assert stats.prefetches_used + stats.prefetches_wasted <= stats.prefetches
    if host_slots == TOTAL and not failing and not prefetching:
        assert machine.disk.submitted <= TOTAL, "what the host holds was read again"


@settings(max_examples=60, deadline=None)
@given(host_slots=st.integers(1, 6), device_slots=st.integers(2, 18), seed=st.integers(0, 999))
def test_a_prefill_goes_through_few_host_slots_and_streams_the_next_layer(
    host_slots: int, device_slots: int, seed: int
) -> None:
    machine = Machine(device_slots, host_slots, policy="next-use", seed=seed)
    ids = np.array([[0, 1], [2, 3], [4, 5]])
    for layer in range(SHAPE.num_layers):
        machine.policy.observe(layer, ids)
        seen = []
        with machine.tier.visit(layer, np.arange(6), np.ones(6, np.int64), 3) as visit:
            if layer + 1 < SHAPE.num_layers:
                visit.read_ahead((layer + 1) * SHAPE.num_experts + np.arange(6))
            for batch, offsets in visit.arrivals():
                machine.copies.order_compute(batch + layer * SHAPE.num_experts)
                machine.copier.compute()
                for expert, offset in zip(batch.tolist(), offsets.tolist(), strict=True):
                    assert (machine.on_device(offset) == layer * SHAPE.num_experts + expert).all()
                    seen.append(expert)
        assert sorted(seen) == list(range(6))
        machine.check()


@pytest.mark.parametrize("host_slots", [1, 2, 5, TOTAL])
def test_a_device_with_a_slot_for_each_expert_is_loaded_through_any_host(host_slots: int) -> None:
    machine = Machine(TOTAL, host_slots)
    machine.tier.load_all(lambda done, total: None)
    assert machine.tier.all_resident and machine.disk.submitted == TOTAL
    machine.copies.order_compute()
    machine.copier.compute()
    for key in range(TOTAL):
        offset = int(machine.tier.hits(key // SHAPE.num_experts, np.array([key % SHAPE.num_experts]), 1)[0])
        assert (machine.on_device(offset) == key).all()
    machine.check()


def test_residents_come_first_then_what_the_host_holds_then_what_the_disk_brings() -> None:
    machine = Machine(device_slots=8, host_slots=8)
    machine.hold_polls()
    machine.visit(0, np.array([[0, 1]]))
    submit(machine.link, [2, 3], math.inf)  # into slots 2 and 3, which the tier gives back at once
    while machine.disk.queued:
        machine.link.wait_any(np.array([key for key in (2, 3) if not machine.slots.holds(np.array([key]))[0]]))
    machine.link.poll()
    batches = machine.visit(0, np.array([[0, 2], [3, 4], [1, 5]]))
    assert batches[0] == [0, 1] and batches[1] == [2, 3] and sorted(chain(*batches[2:])) == [4, 5]


def test_what_the_host_holds_lands_at_once_and_in_one_submission_and_nobody_waits_for_its_copy() -> None:
    machine = Machine(device_slots=6, host_slots=TOTAL)
    machine.slots.load_all(lambda done, total: None)
    machine.copier.patient = True
    submit(machine.link, [0, 1, 2, 3], math.inf)
    assert machine.link.wait_any(np.arange(4)).tolist() == [0, 1, 2, 3]
    assert machine.copier.submissions == [4] and machine.copier.num_pending == 1
    assert machine.copies.ticket(np.array([1, 2])) == machine.copies.last_ticket == 0


def test_compute_of_experts_that_are_there_does_not_wait_for_later_copies() -> None:
    machine = Machine(device_slots=6, host_slots=TOTAL)
    machine.slots.load_all(lambda done, total: None)
    machine.copier.patient = True
    submit(machine.link, [0], math.inf)
    submit(machine.link, [1], math.inf)
    machine.copies.order_compute(np.array([0]))
    machine.copier.compute()
    assert machine.copier.num_pending == 1
    machine.copies.order_compute()
    machine.copier.compute()
    assert machine.copier.num_pending == 0


def test_many_experts_go_in_several_submissions_so_that_the_first_are_soon_there() -> None:
    machine = Machine(device_slots=12, host_slots=TOTAL, copying={"batch_experts": 4})
    machine.slots.load_all(lambda done, total: None)
    submit(machine.link, list(range(10)), math.inf)
    assert machine.copier.submissions == [4, 4, 2]


def test_prefetches_are_copied_likeliest_first_and_only_few_at_a_time() -> None:
    machine = Machine(device_slots=12, host_slots=TOTAL, copying={"prefetch_bytes": 2 * STRIDE})
    machine.slots.load_all(lambda done, total: None)
    machine.copier.patient = True
    submit(machine.link, [6, 7, 8, 9], [0.1, 0.4, 0.3, 0.2])
    assert machine.link.poll().done.tolist() == [7, 8]
    assert machine.link.poll().done.tolist() == [], "two are under way"
    machine.copier.wait(machine.copies.last_ticket)
    machine.link.advance()
    assert machine.link.poll().done.tolist() == [9, 6]


def test_demand_is_copied_however_many_prefetches_are_under_way() -> None:
    machine = Machine(device_slots=12, host_slots=TOTAL)
    machine.slots.load_all(lambda done, total: None)
    machine.copier.patient = True
    submit(machine.link, list(range(6, 12)), 0.5)
    submit(machine.link, [0], math.inf)
    assert 0 in machine.link.poll().done


def test_a_prefetch_that_becomes_demand_is_copied_at_once() -> None:
    machine = Machine(device_slots=12, host_slots=TOTAL, copying={"prefetch_bytes": STRIDE})
    machine.slots.load_all(lambda done, total: None)
    machine.copier.patient = True
    submit(machine.link, [6, 7], [0.5, 0.4])
    assert machine.link.poll().done.tolist() == [6]
    machine.link.reprioritise(np.array([7, 11]), np.array([math.inf, math.inf]))
    assert machine.link.poll().done.tolist() == [7]


def test_a_prefetch_from_the_disk_that_becomes_demand_is_demand_there() -> None:
    machine = Machine(device_slots=12, host_slots=8)
    machine.hold_polls()
    submit(machine.link, [6], 0.5)
    machine.link.reprioritise(np.array([6]), np.array([math.inf]))
    assert machine.disk.queued[6][1] == math.inf and machine.disk.submitted == 1


def test_prefetches_leave_host_slots_to_demand() -> None:
    machine = Machine(device_slots=12, host_slots=4)
    machine.hold_polls()
    submit(machine.link, [6, 7, 8, 9], 0.5)
    assert sorted(machine.disk.queued) == [6, 7]
    submit(machine.link, [0, 1], math.inf)
    assert sorted(machine.disk.queued) == [0, 1, 6, 7]


def test_what_is_cancelled_is_not_copied_and_a_read_under_way_ends_in_the_host() -> None:
    machine = Machine(device_slots=12, host_slots=8)
    machine.hold_polls()
    machine.disk.cancel = lambda keys: EMPTY  # type: ignore[method-assign]  # all of them are issued
    submit(machine.link, [6, 7], 0.5)
    assert machine.link.cancel(np.array([6, 7])).tolist() == [6, 7]
    submit(machine.link, [7], math.inf)
    assert machine.disk.submitted == 2, "the read under way serves the new request"
    assert machine.link.wait_any(np.array([7])).tolist() == [7]
    machine.disk.land([6])
    machine.disk.poll = lambda: ReadDone(np.array([6]), EMPTY)  # type: ignore[method-assign]
    assert machine.link.poll().done.tolist() == [] and machine.copier.submissions == [1]
    assert machine.slots.holds(np.array([6, 7, 8])).tolist() == [True, True, False]
    machine.check()


def test_what_was_submitted_to_the_copier_cannot_be_cancelled() -> None:
    machine = Machine(device_slots=12, host_slots=TOTAL)
    machine.slots.load_all(lambda done, total: None)
    submit(machine.link, [6], math.inf)
    assert machine.link.cancel(np.array([6])).tolist() == []
    assert machine.link.poll().done.tolist() == [6]


def test_a_host_slot_is_not_used_again_before_its_copy_has_ended() -> None:
    machine = Machine(device_slots=4, host_slots=1)
    machine.copier.patient = True
    for key in range(4):
        submit(machine.link, [key], math.inf)
        machine.link.wait_any(np.array([key]))
    machine.copies.order_compute()
    machine.copier.compute()
    assert [int(machine.on_device(key * STRIDE)[0]) for key in range(4)] == [0, 1, 2, 3]


def test_what_the_device_holds_leaves_the_host_first() -> None:
    machine = Machine(device_slots=6, host_slots=6)
    machine.visit(0, np.array([[0, 1]]))
    submit(machine.link, [2, 3], math.inf)  # read by the host, and unknown to the tier
    while len(machine.link.poll().done) == 0 or machine.disk.queued:
        continue
    machine.visit(1, np.array([[0, 1]]))
    machine.visit(1, np.array([[2, 3]]))
    assert machine.slots.holds(np.array([2, 3])).all()
    assert machine.slots.holds(np.array([0, 1, 6, 7])).sum() == 2


def test_what_is_held_for_the_cpu_stays_where_it_is() -> None:
    machine = Machine(device_slots=8, host_slots=3)
    machine.visit(0, np.array([[0, 1]]))
    held = np.array([0])
    offsets = machine.slots.hold(held)
    for layer in (1, 2):
        machine.visit(layer, np.array([[0, 1], [2, 3], [4, 5]]))
    assert (machine.host[int(offsets[0]) :][:STRIDE].view(np.float32) == 0).all()
    machine.slots.release(held)
    machine.check()


def test_an_unreadable_expert_is_named_and_tier_and_link_go_on() -> None:
    machine = Machine(device_slots=4, host_slots=4, failing=frozenset([8]))
    machine.hold_polls()
    with pytest.raises(ExpertReadError, match=r"expert 2 of layer 1 .*experts-00001\.bin"):
        machine.visit(1, np.array([[2]]))
    machine.visit(0, np.array([[2, 3]]))
    machine.check()


def test_demand_whose_read_has_failed_unseen_is_read_again_and_then_raises() -> None:
    machine = Machine(device_slots=4, host_slots=4, failing=frozenset([8]))
    submit(machine.link, [8], math.inf)
    while 8 in machine.disk.queued:
        machine.slots.loader.poll()
    with pytest.raises(ReadFailure) as raised:
        machine.link.wait_any(np.array([8]))
    assert raised.value.key == 8 and machine.disk.submitted == 2
    submit(machine.link, [0], math.inf)
    assert machine.link.wait_any(np.array([0])).tolist() == [0]


def test_a_prefetch_that_fails_is_reported_once_and_frees_its_slots() -> None:
    machine = Machine(device_slots=8, host_slots=2, failing=frozenset([7]))
    machine.tier.prefetches.submit(np.array([7]), np.array([0.5]))
    while machine.tier.prefetches.known(1)[0, 1]:
        machine.visit(0, np.array([[0, 1]]))
    assert machine.tier.stats.prefetches_wasted == 1
    machine.check()


def test_demand_with_no_host_slot_gets_that_of_a_failing_prefetch() -> None:
    machine = Machine(device_slots=8, host_slots=1, failing=frozenset([7]))
    machine.hold_polls()
    machine.tier.prefetches.submit(np.array([7]), np.array([0.5]))
    machine.visit(0, np.array([[0, 1]]))
    assert machine.disk.submitted == 3
    machine.check()


def test_the_host_is_filled_in_the_order_of_the_files_and_as_far_as_it_goes() -> None:
    machine = Machine(device_slots=4, host_slots=7)
    seen: list[tuple[int, int]] = []
    machine.slots.load_all(lambda done, total: seen.append((done, total)))
    assert machine.slots.holds(np.arange(TOTAL)).tolist() == [key < 7 for key in range(TOTAL)]
    assert seen[0] == (0, 7 * STRIDE) and seen[-1] == (7 * STRIDE, 7 * STRIDE) and seen == sorted(seen)
    assert (machine.host[SLOTS_START:].view(np.float32).reshape(7, -1) == np.arange(7)[:, None]).all()


def test_a_host_that_cannot_be_filled_raises_the_failure() -> None:
    machine = Machine(device_slots=4, host_slots=7, failing=frozenset([3]))
    with pytest.raises(ExpertReadError, match="expert 3 of layer 0"):
        machine.slots.load_all(lambda done, total: None)


@pytest.mark.parametrize(
    ("host_slots", "pinned_bytes", "reaches"),
    [(TOTAL, None, True), (TOTAL, SLOTS_START + (TOTAL - 1) * STRIDE, False), (TOTAL - 1, None, False)],
)
def test_the_device_reaches_all_where_the_host_holds_all_and_it_is_pinned(
    host_slots: int, pinned_bytes: int | None, reaches: bool
) -> None:
    machine = Machine(device_slots=4, host_slots=host_slots, pinned_bytes=pinned_bytes)
    machine.slots.load_all(lambda done, total: None)
    assert not machine.slots.device_reaches_all
    machine.slots.pin(1 << 40)
    assert machine.slots.device_reaches_all == reaches
    if reaches:
        at = address_of(machine.host, SLOTS_START + np.arange(TOTAL) * STRIDE)
        assert machine.slots.device_addresses().tolist() == at.tolist()


def test_the_device_reaches_slots_of_two_sizes() -> None:
    sizes = sizes_of({1})
    machine = Machine(device_slots=6, host_slots=TOTAL, sizes=sizes)
    machine.slots.load_all(lambda done, total: None)
    assert machine.slots.pin(1 << 40) == SLOTS_START + sizes.num_bytes(TOTAL) and machine.slots.device_reaches_all
    addresses = machine.slots.device_addresses()
    ends = addresses + np.where(np.arange(TOTAL) // SHAPE.num_experts == 1, 2, 1) * STRIDE
    order = np.argsort(addresses)
    assert (addresses[order][1:] == ends[order][:-1]).all(), "no slot lies within another, and none is lost"


def test_the_rate_of_the_link_is_that_of_its_slower_part() -> None:
    machine = Machine(device_slots=4, host_slots=7)
    machine.disk.busy_seconds = lambda: 5.0  # type: ignore[method-assign]
    machine.slots.load_all(lambda done, total: None)
    machine.visit(0, np.array([[0, 1]]))
    machine.copier.wait(machine.copies.last_ticket)
    assert machine.link.bytes_read() == 2 * STRIDE
    assert machine.link.busy_seconds() == machine.copier.busy_seconds(), "loading the host brought the device nothing"
    machine.disk.busy_seconds = lambda: 8.0  # type: ignore[method-assign]
    assert machine.link.busy_seconds() == 3.0


def test_demand_under_way_counts_as_lag_until_it_has_ended() -> None:
    machine = Machine(device_slots=6, host_slots=TOTAL)
    machine.slots.load_all(lambda done, total: None)
    submit(machine.link, [0], math.inf)
    machine.copier.wait(0)
    machine.copier.patient = True
    assert machine.copies.lag_s() == 0.0
    submit(machine.link, [1, 2], math.inf)
    submit(machine.link, [3], 0.5)
    assert machine.copies.lag_s() == pytest.approx(2 * STRIDE / 1e9)
    machine.copier.wait(machine.copies.last_ticket)
    assert machine.copies.lag_s() == 0.0


def test_closing_waits_for_copies_and_ends_the_disks_reader() -> None:
    machine = Machine(device_slots=6, host_slots=TOTAL)
    closed = []

    def close() -> bool:
        closed.append(True)
        return True

    machine.disk.close = close  # type: ignore[method-assign]
    machine.slots.load_all(lambda done, total: None)
    machine.copier.patient = True
    submit(machine.link, [0, 1], math.inf)
    submit(machine.link, [2], math.inf)
    machine.copier.wait(0)
    machine.copies.lag_s()
    machine.link.close()
    assert closed and machine.copier.num_pending == 0


def test_what_waits_for_its_turn_to_be_copied_is_not_evicted() -> None:
    machine = Machine(device_slots=12, host_slots=6, copying={"prefetch_bytes": STRIDE})
    machine.copier.patient = True
    machine.hold_polls()
    submit(machine.link, [6, 7], [0.5, 0.4])
    for key in (6, 7):
        machine.disk.land([key])
    machine.disk.poll = lambda: ReadDone(np.array([6, 7]), EMPTY)  # type: ignore[method-assign]
    assert machine.link.poll().done.tolist() == [6]
    machine.hold_polls()
    submit(machine.link, [0, 1, 2, 3, 4, 5], math.inf)
    assert sorted(machine.disk.queued) == [0, 1, 2, 3], "two slots are those of the copied and the waiting one"
    assert machine.slots.holds(np.array([7])).all()


def test_a_host_slot_is_free_when_its_own_copy_has_ended_whatever_comes_behind() -> None:
    machine = Machine(device_slots=12, host_slots=2)
    machine.hold_polls()
    machine.copier.patient = True
    for key in (0, 1):
        submit(machine.link, [key], math.inf)
        machine.link.wait_any(np.array([key]))
    submit(machine.link, [2, 3], math.inf)
    assert not machine.disk.queued, "both slots are being copied"
    machine.copier.wait(machine.copies.ticket(np.array([0])))
    machine.link.advance()
    assert sorted(machine.disk.queued) == [2]
    assert sorted(machine.link.wait_any(np.array([2, 3])).tolist()) == [2]
    assert machine.link.wait_any(np.array([3])).tolist() == [3]


def test_demand_is_served_in_the_order_in_which_it_became_demand() -> None:
    machine = Machine(device_slots=12, host_slots=1)
    machine.hold_polls()
    machine.copier.patient = True
    submit(machine.link, [0], math.inf)
    submit(machine.link, [6], 0.5)
    submit(machine.link, [1], math.inf)
    machine.link.reprioritise(np.array([6]), np.array([math.inf]))
    order = []
    for _ in range(3):
        order += list(machine.disk.queued)
        machine.link.wait_any(np.array(order[-1:]))
        machine.copier.wait(machine.copies.last_ticket)
        machine.link.advance()
    assert order == [0, 1, 6]


def test_compute_is_not_made_to_wait_for_what_is_known_to_have_ended() -> None:
    machine = Machine(device_slots=12, host_slots=TOTAL)
    machine.slots.load_all(lambda done, total: None)
    submit(machine.link, [0], math.inf)
    machine.copier.wait(0)
    machine.copies.lag_s()
    machine.copier.make_wait = lambda *_: pytest.fail("nothing to wait for")  # type: ignore[method-assign]
    machine.copies.order_compute(np.array([0]))
    machine.copies.order_compute(np.array([5]))
    machine.copies.order_compute()
