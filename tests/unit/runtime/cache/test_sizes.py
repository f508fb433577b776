"""Slots of several sizes: which there are, how memory is shared out among them, and a tier that has them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.hardware import MemoryState
from moeinf.runtime.cache.pressure import MemoryWatch
from moeinf.runtime.cache.slot_sizes import SlotSizes, equal_slots, slot_sizes
from moeinf.runtime.cache.table import RESIDENT
from moeinf.types import MoeShape
from tests.support.fake_reader import LAYOUT, SHAPE, Tier, make_tier, sizes_of, visit

PAGE = 4096
BYTES = st.lists(st.integers(1, 60).map(lambda pages: pages * PAGE), min_size=1, max_size=12)


def shape_of(num_layers: int, num_experts: int = 16, top_k: int = 3) -> MoeShape:
    return MoeShape(num_layers, num_experts, top_k)


@settings(max_examples=60, deadline=None)
@given(BYTES)
def test_no_expert_wastes_more_than_a_tenth_and_no_fewer_sizes_would_do(layer_bytes: list[int]) -> None:
    sizes = slot_sizes(layer_bytes, shape_of(len(layer_bytes)))
    assert sizes.wasted() <= 0.1 and list(sizes.class_bytes) == sorted(set(sizes.class_bytes), reverse=True)
    smaller = sorted(set(layer_bytes))[:-1]
    for fewer in combinations(smaller, len(sizes.class_bytes) - 2) if len(sizes.class_bytes) > 1 else ():
        slots = [max(layer_bytes), *fewer]
        assert any(10 * each < 9 * min(slot for slot in slots if slot >= each) for each in layer_bytes)


@settings(max_examples=60, deadline=None)
@given(BYTES, st.integers(0, 10**7))
def test_however_many_slots_there_are_each_layer_has_its_share(layer_bytes: list[int], num_bytes: int) -> None:
    sizes = slot_sizes(layer_bytes, shape_of(len(layer_bytes)))
    slots = sizes.slots_in(num_bytes)
    assert sizes.num_bytes(slots) <= num_bytes
    assert slots == len(sizes.order) or sizes.num_bytes(slots + 1) > num_bytes
    experts = 16 * np.bincount(sizes.of_layers)
    found = np.bincount(sizes.order[:slots], minlength=len(experts))
    assert (found <= experts).all() and (slots < len(sizes.order) or (found == experts).all())
    if slots >= sizes.least_slots:
        above = found > 3
        assert (found >= 3).all() and (np.ptp((found / experts)[above]) <= 1 / 16 if above.any() else True)


@settings(max_examples=60, deadline=None)
@given(BYTES, st.integers(0, 10**7))
def test_several_sizes_never_leave_a_layer_fewer_experts_than_one(layer_bytes: list[int], num_bytes: int) -> None:
    sizes = slot_sizes(layer_bytes, shape_of(len(layer_bytes)))
    chosen = sizes.worth_in(num_bytes)
    equal = min(len(sizes.order), num_bytes // max(layer_bytes))
    experts = 16 * np.bincount(chosen.of_layers, minlength=len(chosen.class_bytes))
    found = np.bincount(chosen.order[: chosen.slots_in(num_bytes)], minlength=len(experts))
    assert (found + 1 > equal * experts / len(sizes.order)).all()
    assert len(chosen.class_bytes) == 1 or (found >= 3).all(), "what one layer of a token needs"
    assert set(chosen.class_bytes) <= set(sizes.class_bytes) and max(layer_bytes) in chosen.class_bytes


def test_sizes_within_a_tenth_are_one() -> None:
    sizes = slot_sizes([10 * PAGE, 9 * PAGE], shape_of(2))
    assert sizes.class_bytes == (10 * PAGE,) and sizes.worth_in(0) == sizes
    equal = equal_slots(PAGE, shape_of(2))
    assert [equal.slots_in(pages * PAGE) for pages in (-1, 0, 5, 32, 99)] == [0, 0, 5, 32, 32]


def test_the_size_that_costs_least_goes_first() -> None:
    sizes = slot_sizes([10 * PAGE, 8 * PAGE, 4 * PAGE, 4 * PAGE], shape_of(4))
    assert sizes.fewer().class_bytes == (10 * PAGE, 4 * PAGE)
    assert sizes.worth_in(9 * 22 * PAGE // 3).class_bytes == sizes.class_bytes
    assert sizes.worth_in(6 * 9 * PAGE).class_bytes == (10 * PAGE, 4 * PAGE), "three slots of 8 pages are too many"
    assert sizes.worth_in(6 * 4 * PAGE).class_bytes == (10 * PAGE,)


# ---- a tier that has them


def resident_by_class(tier: Tier, sizes: SlotSizes) -> list[int]:
    of_layers = (tier.states() == RESIDENT).sum(axis=1)
    return [int(of_layers[sizes.of_layers == each].sum()) for each in range(len(sizes.class_bytes))]


def test_all_are_read_in_the_order_of_the_files_and_memory_goes_back_by_shares() -> None:
    sizes, said = sizes_of({1}), list[tuple[int, int]]()
    total = SHAPE.total_experts
    tier, _, policy = make_tier(total, sizes=sizes, load_bytes_ahead=4 * LAYOUT.stride_bytes)
    tier.load_all(lambda done, all_bytes: said.append((done, all_bytes)))
    assert tier.all_resident and said[-1] == (sizes.num_bytes(total),) * 2 == (tier.num_bytes,) * 2
    tier.check_integrity()
    left = [sizes.num_bytes(total) - tier.num_bytes]
    watch = MemoryWatch(
        tier,
        sizes.least_slots,
        4 * LAYOUT.stride_bytes,
        lambda line: None,
        lambda: MemoryState(left[0], "machine", 0.0),
    )
    assert watch.look(), "memory is short"
    assert sizes.num_bytes(total) - tier.num_bytes == tier.stats.given_back_bytes >= 4 * LAYOUT.stride_bytes
    tier.check_integrity()
    left[0] = -(10**9)
    assert watch.look() and tier.num_slots == sizes.least_slots
    assert resident_by_class(tier, sizes) == [SHAPE.top_k, SHAPE.top_k], "each size keeps what a token needs"
    for layer in range(SHAPE.num_layers):
        visit(tier, policy, layer, np.arange(SHAPE.num_experts)[:, None])
        tier.check_integrity()
    left[0] = 10**9
    assert not watch.look() and tier.num_slots == total


def test_what_comes_in_takes_the_place_of_its_own_size() -> None:
    sizes = sizes_of({0})
    tier, _, policy = make_tier(sizes.least_slots + 3, sizes=sizes)
    for layer in range(SHAPE.num_layers):
        visit(tier, policy, layer, np.arange(SHAPE.num_experts)[:, None])
    full = resident_by_class(tier, sizes)
    assert sum(full) == tier.num_slots
    for _ in range(3):
        visit(tier, policy, 0, np.arange(SHAPE.num_experts)[None, : SHAPE.top_k])
        assert resident_by_class(tier, sizes) == full
        tier.check_integrity()


def test_a_fill_goes_on_where_one_size_has_no_slot_left() -> None:
    sizes = sizes_of({0})
    tier, _, _ = make_tier(sizes.least_slots + 2, sizes=sizes)
    tier.fill(np.arange(SHAPE.num_keys), lambda: False)
    assert sum(resident_by_class(tier, sizes)) == tier.num_slots


@pytest.mark.parametrize("layer", range(SHAPE.num_layers))
def test_prefetches_keep_no_more_than_the_room_of_their_size(layer: int) -> None:
    sizes = sizes_of({0})
    tier, _, policy = make_tier(sizes.least_slots + 8, sizes=sizes)
    visit(tier, policy, layer, np.arange(SHAPE.top_k)[None])
    ahead = SHAPE.num_layers - layer - 1
    likely = np.ones((ahead, SHAPE.num_experts))
    keys, priorities = tier.prefetches.likeliest(layer, likely, 0.0, SHAPE.num_keys) if ahead else ([], [])
    assert tier.prefetches.submit(np.array(keys, np.int64), np.array(priorities)) == len(keys)
    slots, classes = (
        np.bincount(sizes.order[: tier.num_slots]),
        np.bincount(sizes.of_layers[np.array(keys, np.int64) // SHAPE.num_experts], minlength=2),
    )
    assert (classes <= (slots - SHAPE.top_k) // 2).all()
