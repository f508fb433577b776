"""The slots of a tier against a brute-force replay, under random routings, arrivals, prefetches and failures."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import ExpertReadError
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.types import IntArray
from tests.support.fake_reader import SHAPE, make_tier, visit

routings = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 2**32 - 1)), min_size=1, max_size=12
)  # tokens of a forward pass, seed of its routing


@settings(max_examples=120, deadline=None)
@given(
    num_slots=st.integers(2, 18),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 999),
    passes=routings,
    prefetching=st.booleans(),
)
def test_any_schedule_gives_the_right_weights_and_counts_every_activation(
    num_slots: int, policy: str, seed: int, passes: list[tuple[int, int]], prefetching: bool
) -> None:
    tier, reader, chosen = make_tier(num_slots, policy, seed)
    activations = 0
    for tokens, routing_seed in passes:
        rng = np.random.default_rng(routing_seed)
        for layer in range(SHAPE.num_layers):
            ids = np.array([rng.permutation(SHAPE.num_experts)[: SHAPE.top_k] for _ in range(tokens)])
            before = tier.stats.snapshot()
            resident = tier.snapshot().resident
            landed_in_poll = {k for k in reader.queued}
            visit(tier, chosen, layer, ids)
            tier.check_integrity()
            activations += ids.size
            hits = tier.stats.since(before).hits
            keys = (layer * SHAPE.num_experts + ids).ravel().tolist()
            assert sum(k in resident for k in keys) <= hits <= sum(k in resident | landed_in_poll for k in keys)
            if prefetching and tier.prefetches.room > 0 and layer + 1 < SHAPE.num_layers:
                absent = np.flatnonzero(~tier.prefetches.known(layer + 1)[0])[: tier.prefetches.room]
                tier.prefetches.submit((layer + 1) * SHAPE.num_experts + absent, rng.random(len(absent)))
                tier.check_integrity()
    stats = tier.stats
    assert stats.hits + stats.misses == activations
    assert stats.late_hits <= stats.misses
    assert stats.demand_reads + stats.prefetches == reader.submitted
    assert stats.prefetches_used + stats.prefetches_wasted <= stats.prefetches
    assert len(tier.snapshot().resident) + len(reader.queued) <= num_slots, "more is held than the budget"


@settings(max_examples=60, deadline=None)
@given(num_slots=st.integers(6, 18), seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12))
def test_lru_keeps_what_was_used_last(num_slots: int, seeds: list[int]) -> None:
    tier, _, policy = make_tier(num_slots, "lru")
    last_visit = dict.fromkeys(range(SHAPE.total_experts), -1)
    for number, (seed, layer) in enumerate((s, layer) for s in seeds for layer in range(SHAPE.num_layers)):
        held_before = set(tier.snapshot().offsets)
        ids = np.random.default_rng(seed + layer).permutation(SHAPE.num_experts)[: SHAPE.top_k][None]
        needed = set((layer * SHAPE.num_experts + ids[0]).tolist())
        visit(tier, policy, layer, ids)
        held = set(tier.snapshot().offsets)
        evicted, kept = held_before - held, held - needed
        assert needed <= held and len(held) == min(num_slots, len(held_before | needed))
        assert not evicted or not kept or max(last_visit[k] for k in evicted) <= min(last_visit[k] for k in kept)
        last_visit |= dict.fromkeys(needed, number)


def test_a_visit_of_more_experts_than_slots_goes_through_in_waves() -> None:
    tier, _, policy = make_tier(num_slots=2)
    ids = np.array([[0, 1], [2, 3], [4, 5]])
    assert sorted(visit(tier, policy, 0, ids)) == [0, 1, 2, 3, 4, 5]
    assert tier.stats.demand_reads == 6
    tier.check_integrity()


def test_residents_come_before_what_must_be_read() -> None:
    tier, _, policy = make_tier(num_slots=6)
    visit(tier, policy, 0, np.array([[4, 5]]))
    assert set(visit(tier, policy, 0, np.array([[0, 4], [1, 5]]))[:2]) == {4, 5}


def test_a_prefetched_expert_is_not_evicted_before_its_layer_has_run() -> None:
    tier, reader, policy = make_tier(num_slots=6)
    tier.prefetches.submit(np.array([6, 7]), np.array([0.5, 0.4]))
    while reader.queued:
        visit(tier, policy, 2, np.array([[0, 1]]))
    for first in (0, 2, 4, 0, 2):
        visit(tier, policy, 0, np.array([[first, first + 1]]))
    assert tier.prefetches.known(1)[0, :2].all()
    before = tier.stats.hits
    visit(tier, policy, 1, np.array([[0, 1]]))
    assert tier.stats.hits == before + 2 and tier.stats.prefetches_used == 2


def test_a_prefetch_in_flight_is_raised_to_demand_and_not_read_again() -> None:
    tier, reader, policy = make_tier(num_slots=8, seed=3)
    tier.prefetches.submit(np.array([7]), np.array([0.5]))
    reader.poll = lambda: ReadDone(np.array([], np.int64), np.array([], np.int64))  # type: ignore[method-assign]
    seen: list[float] = []
    wait = reader.wait_any

    def wait_and_note(keys: IntArray) -> IntArray:
        seen.append(reader.queued[7][1])
        return wait(keys)

    reader.wait_any = wait_and_note  # type: ignore[method-assign]
    visit(tier, policy, 1, np.array([[1, 1]])[:, :1])
    assert seen[0] == math.inf and reader.submitted == 1
    assert (tier.stats.late_hits, tier.stats.misses, tier.stats.prefetches_used) == (1, 1, 1)


def test_an_unreadable_expert_is_named_and_the_tier_goes_on() -> None:
    tier, _, policy = make_tier(num_slots=4, failing=frozenset([8]))
    with pytest.raises(ExpertReadError, match=r"expert 2 of layer 1 .*experts-00001\.bin.*moeinf verify"):
        visit(tier, policy, 1, np.array([[2]]))
    tier.check_integrity()
    assert visit(tier, policy, 0, np.array([[2, 3]])) != []


def test_demand_that_waits_for_the_slot_of_a_failing_prefetch_gets_it() -> None:
    tier, reader, policy = make_tier(num_slots=2, failing=frozenset([6, 7]))
    reader.poll = lambda: ReadDone(np.array([], np.int64), np.array([], np.int64))  # type: ignore[method-assign]
    tier.prefetches.submit(np.array([6, 7]), np.array([0.5, 0.4]))
    assert sorted(visit(tier, policy, 0, np.array([[0, 1]]))) == [0, 1]
    tier.check_integrity()


def test_a_failed_prefetch_frees_its_slot_and_says_nothing() -> None:
    tier, reader, policy = make_tier(num_slots=8, failing=frozenset([7]))
    tier.prefetches.submit(np.array([7]), np.array([0.5]))
    while 7 in reader.queued:
        visit(tier, policy, 0, np.array([[0, 1]]))
    assert not tier.prefetches.known(1)[0, 1] and tier.stats.prefetches_wasted == 1
    tier.check_integrity()


def test_a_visit_that_is_left_early_holds_nothing_and_its_iterator_does_no_harm_later() -> None:
    tier, _, policy = make_tier(num_slots=6)
    visit(tier, policy, 0, np.array([[0, 1]]))
    with tier.visit(0, np.array([0, 2]), np.ones(2, np.int64), 1) as left:
        arrivals = left.arrivals()
        next(arrivals)
        assert tier.snapshot().pinned
    assert not tier.snapshot().pinned and not tier.snapshot().reserved
    with tier.visit(0, np.array([0]), np.ones(1, np.int64), 1) as following:
        computing = following.arrivals()
        next(computing)
        assert list(arrivals) == [], "the visit has ended"
        assert tier.snapshot().pinned == {0}, "a late iterator unpins nothing of the next visit"
        assert list(computing) == []
    tier.check_integrity()


def test_a_late_close_of_a_generator_inside_a_visit_ends_it() -> None:
    tier, _, policy = make_tier(num_slots=6)

    def answer() -> Generator[int, None, None]:
        with tier.visit(0, np.array([0, 2]), np.ones(2, np.int64), 1) as opened:
            for experts, _ in opened.arrivals():
                yield from experts.tolist()

    tokens = answer()
    next(tokens)
    assert tier.snapshot().pinned
    tokens.close()
    tier.check_integrity()
    visit(tier, policy, 1, np.array([[0, 1]]))
    tier.check_integrity()


def test_while_the_slots_are_leased_no_visit_begins() -> None:
    tier, _, policy = make_tier(num_slots=6)
    slots = tier.lease().slots
    with pytest.raises(AssertionError, match="somebody else decides"):
        visit(tier, policy, 0, np.array([[0, 1]]))
    tier.reclaim(slots)
    assert visit(tier, policy, 0, np.array([[0, 1]]))
