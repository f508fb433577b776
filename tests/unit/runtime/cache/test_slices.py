"""Experts in slices: any schedule gives every slice in its order, from memory that may hold part of an expert."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import ExpertReadError
from moeinf.runtime.cache.slices import SliceScores
from moeinf.runtime.cache.table import ABSENT, LOADING, NO_EXPERT, RESIDENT
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.runtime.policy.policy_protocol import EvictionPolicy
from moeinf.types import FloatArray, IntArray
from tests.oracles.visit import SLICES_AHEAD
from tests.support.fake_reader import LAYOUT, SHAPE, Tier, make_tier

SLICES = (4, 3, 4)  # of the experts of each layer
MOST = max(SLICES)
TOP_K = SHAPE.top_k


def run(tier: Tier, policy: EvictionPolicy, layer: int, ids: IntArray) -> list[int]:
    """One layer's visit; checks every slice at the moment of use. Returns the experts in their order."""
    policy.observe(layer, ids)
    experts, counts = np.unique(ids, return_counts=True)
    order: list[int] = []
    with tier.visit(layer, experts, counts, len(ids)) as visit:
        for batch, offsets in visit.arrivals():
            for number, offset in zip(batch.tolist(), offsets.tolist(), strict=True):
                block = tier.memory[offset : offset + LAYOUT.stride_bytes].view(np.float32)
                assert (block == layer * SHAPE.num_experts * MOST + number).all(), "the slot holds another slice"
                order.append(number)
    in_turn = list(dict.fromkeys(number // MOST for number in order))
    assert order == [expert * MOST + number for expert in in_turn for number in range(SLICES[layer])]
    assert sorted(in_turn) == experts.tolist()
    return in_turn


def states(tier: Tier) -> np.ndarray:
    """[layers, experts, slices]"""
    snapshot = tier.snapshot()
    found = np.full(len(SLICES) * SHAPE.num_experts * MOST, ABSENT)
    found[list(snapshot.resident)], found[list(snapshot.loading)] = RESIDENT, LOADING
    return found.reshape(len(SLICES), SHAPE.num_experts, MOST)


passes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2**32 - 1)), min_size=1, max_size=10)


@settings(max_examples=150, deadline=None)
@given(
    num_slots=st.integers(TOP_K * MOST - 1, 66),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 999),
    passes=passes,
    prefetching=st.booleans(),
    resizing=st.booleans(),
)
def test_any_schedule_gives_every_slice_in_its_order(
    num_slots: int, policy: str, seed: int, passes: list[tuple[int, int]], prefetching: bool, resizing: bool
) -> None:
    tier, reader, chosen = make_tier(num_slots, policy, seed, slices=SLICES)
    activations = 0
    for tokens, routing_seed in passes:
        rng = np.random.default_rng(routing_seed)
        for layer in range(SHAPE.num_layers):
            ids = np.array([rng.permutation(SHAPE.num_experts)[:TOP_K] for _ in range(tokens)])
            before, coming = tier.stats.snapshot(), set(reader.queued)
            here = (states(tier) == RESIDENT)[layer, :, : SLICES[layer]].all(axis=1)
            run(tier, chosen, layer, ids)
            tier.check_integrity()
            activations += ids.size
            if not coming:
                assert tier.stats.since(before).hits == here[ids].sum()
            if prefetching and tier.prefetches.room > 0 and layer + 1 < SHAPE.num_layers:
                absent = np.flatnonzero(~tier.prefetches.known(layer + 1)[0])[: tier.prefetches.room]
                keys = (layer + 1) * SHAPE.num_experts * MOST + absent
                tier.prefetches.submit(keys, rng.random(len(absent)))
            if resizing and rng.random() < 0.3:
                tier.resize(int(rng.integers(TOP_K * MOST - 1, num_slots + 1)))
                tier.check_integrity()
    stats = tier.stats
    assert stats.hits + stats.misses == activations
    assert stats.demand_reads + stats.prefetches == reader.submitted
    assert len(tier.snapshot().resident) + len(reader.queued) <= tier.num_slots


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5, 7])
def test_a_prompt_passes_through_slots_that_hold_less_than_one_expert(num_slots: int) -> None:
    tier, reader, policy = make_tier(num_slots, slices=SLICES)
    prompt = np.array([[0, 1], [2, 3], [4, 5]])
    for layer in (0, 1, 2, 0, 1, 2):
        run(tier, policy, layer, prompt)
        tier.check_integrity()
    assert reader.submitted <= 2 * sum(SLICES) * SHAPE.num_experts


def test_what_is_left_of_an_expert_is_not_read_again_and_comes_first() -> None:
    tier, reader, policy = make_tier(2 * MOST, slices=SLICES)
    run(tier, policy, 0, np.array([[0]]))
    run(tier, policy, 2, np.array([[1]]))
    submitted = reader.submitted
    tier.resize(MOST + 2)
    left = states(tier)
    assert (left[0, 0] == RESIDENT).sum() + (left[2, 1] == RESIDENT).sum() == MOST + 2
    layer, expert = next((layer, e) for layer, e in ((0, 0), (2, 1)) if 0 < (left[layer, e] == RESIDENT).sum() < MOST)
    held = int((left[layer, expert] == RESIDENT).sum())
    assert run(tier, policy, layer, np.array([[expert]])) == [expert]
    assert reader.submitted - submitted == MOST - held
    assert (tier.stats.hits, tier.stats.misses) == (0, 3), "part of an expert is no hit"


def test_the_last_slices_of_an_expert_leave_first_and_experts_in_their_order() -> None:
    class Scores:
        def keep_scores(self, layer: int) -> FloatArray:
            return np.array([[-3.0, 2e6], [0.0, -3.001]])

    scores = SliceScores(Scores(), 3).keep_scores(0)
    assert scores.shape == (2, 6)
    assert scores.ravel().argsort().tolist() == [11, 10, 9, 2, 1, 0, 8, 7, 6, 5, 4, 3]


def test_one_token_takes_few_slots_for_what_it_reads() -> None:
    """What is computed gives its slot to what follows, so that a whole expert can stay beside a token's others."""
    tier, reader, policy = make_tier(3 * MOST, policy="next-use", slices=SLICES)
    run(tier, policy, 0, np.array([[0, 1]]))
    most, submit = 0, reader.submit

    def count(*arguments: object) -> None:
        nonlocal most
        submit(*arguments)  # type: ignore[arg-type]
        most = max(most, len(reader.queued))

    reader.submit = count  # type: ignore[method-assign,assignment]
    run(tier, policy, 2, np.array([[1, 2]]))
    assert most <= SLICES_AHEAD


def test_a_read_of_a_slice_that_fails_names_its_expert_and_frees_what_belongs_to_it() -> None:
    key = (1 * SHAPE.num_experts + 4) * MOST + 2
    tier, reader, policy = make_tier(24, failing=frozenset({key}), slices=SLICES)
    for _ in range(2):
        with pytest.raises(ExpertReadError, match=r"expert 4 of layer 1 is unreadable in experts-00001\.bin"):
            run(tier, policy, 1, np.array([[3, 4]]))
        assert not (states(tier)[1, 4] == RESIDENT).any(), "nobody knows which slice is damaged"
        while reader.queued:
            run(tier, policy, 0, np.array([[0, 1]]))
        tier.check_integrity()
    reader._failing = frozenset()
    run(tier, policy, 1, np.array([[3, 4]]))


def test_experts_are_told_as_resident_where_all_of_their_slices_are() -> None:
    tier, reader, policy = make_tier(2 * MOST, slices=SLICES)
    run(tier, policy, 1, np.array([[2, 5]]))
    tier.prefetches.submit(np.array([(2 * SHAPE.num_experts + 3) * MOST]), np.array([0.5]))
    told = tier.states()
    assert told.shape == (SHAPE.num_layers, SHAPE.num_experts) and not (told == NO_EXPERT).any()
    assert {tuple(each) for each in np.argwhere(told == RESIDENT).tolist()} == {(1, 2), (1, 5)}
    assert np.argwhere(told == LOADING).tolist() == ([[2, 3]] if reader.queued else [])
    tier.resize(TOP_K * MOST - 3)
    assert (tier.states() == RESIDENT).sum() == (states(tier)[1, :, :3] == RESIDENT).all(axis=1).sum()
    assert (tier.num_experts, tier.num_bytes) == (1, (TOP_K * MOST - 3) * LAYOUT.stride_bytes)


def test_free_slots_are_filled_with_the_experts_that_come_first() -> None:
    tier, _, _ = make_tier(2 * MOST + 2, slices=SLICES)
    tier.fill(np.array([2, 0, 13]), lambda: False)
    found = states(tier) == RESIDENT
    assert found[0, 2].all() and found[0, 0].all() and found[2, 1].sum() == 2
    tier.check_integrity()
