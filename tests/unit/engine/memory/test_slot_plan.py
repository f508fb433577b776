"""The sizes of slots in a memory plan: files of mixed types waste less than a tenth, and short memory has fewer."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import plan_device_memory
from moeinf.engine.memory.footprint import Footprint
from moeinf.engine.memory.plan import MemoryPlan, plan_memory
from moeinf.store.format import expert_layout
from moeinf.types import Format, MoeShape
from tests.support.footprints import FOOTPRINT, MIB, on

HIDDEN, WIDE, LAYERS = 2048, 768, 48  # Qwen3-30B-A3B: 128 experts a layer, of which a token uses 8
Types = list[tuple[str, str]]
Q4_K_M: Types = [("q4_k", "q6_k" if layer < 6 or layer >= 42 or layer % 3 == 2 else "q4_k") for layer in range(LAYERS)]
# As files go whose types were chosen by layer: a few layers, the first and the last, have more bits.
BY_LAYER: Types = [("q4_k", "q6_k")] * 2 + [("q3_k", "q4_k")] * 4 + [("q2_k", "q3_k")] * 40 + [("q3_k", "q4_k")] * 2


def footprint_of(types: Types, moe: MoeShape | None = None) -> Footprint:
    """A model whose layers have these types: of gate and up, and of down."""
    parts = (("gate", (WIDE, HIDDEN), 0), ("up", (WIDE, HIDDEN), 0), ("down", (HIDDEN, WIDE), 1))
    layouts = tuple(
        expert_layout([(name, cast(Format, each[which]), shape) for name, shape, which in parts]) for each in types
    )
    largest = max(layouts, key=lambda layout: layout.stride_bytes)
    return dataclasses.replace(FOOTPRINT, moe=moe or MoeShape(len(types), 128, 8), layout=largest, layers=layouts)


def equal(footprint: Footprint) -> Footprint:
    """The same with experts that are all as large as the largest."""
    return dataclasses.replace(footprint, layers=())


def shares(plan: MemoryPlan) -> list[float]:
    """Of each layer's experts, those that slots of its size hold."""
    order = plan.sizes.order[: plan.num_slots].tolist()
    whole = plan.sizes.order.tolist()
    return [order.count(each) / whole.count(each) for each in plan.sizes.of_layers.tolist()]


@pytest.mark.parametrize(("types", "num_sizes", "gain"), [(Q4_K_M, 2, 1.06), (BY_LAYER, 3, 1.6)])
@pytest.mark.parametrize("available", [4000, 8000])
def test_no_expert_of_a_mixture_wastes_a_tenth(types: Types, num_sizes: int, gain: float, available: int) -> None:
    footprint = footprint_of(types)
    plan = plan_memory(footprint, RuntimeConfig(), on(available))
    before = plan_memory(equal(footprint), RuntimeConfig(), on(available))
    assert plan.sizes == footprint.sizes and len(footprint.sizes.class_bytes) == num_sizes
    assert footprint.sizes.wasted() <= 0.1 and plan.slot_bytes == before.slot_bytes
    assert plan.num_slots >= gain * before.num_slots or plan.num_slots == footprint.moe.total_experts
    found = shares(plan)
    assert max(found) - min(found) < 0.02 and min(found) > before.num_slots / footprint.moe.total_experts


def test_all_experts_fit_into_less_memory() -> None:
    footprint = footprint_of(Q4_K_M)
    room = plan_memory(footprint, RuntimeConfig.of(expert_cache=None), on(100_000))
    assert room.num_slots == 48 * 128 and room.cache_bytes < 0.94 * room.num_slots * room.slot_bytes
    asked = plan_memory(footprint, RuntimeConfig.of(expert_cache="50%"), on(100_000))
    assert asked.num_slots == pytest.approx(48 * 128 / 2, abs=2) and asked.cache_bytes <= room.cache_bytes / 2


def test_where_memory_is_short_there_are_fewer_sizes() -> None:
    """Two layers alone have smaller experts, and what a token needs of each is much of a small cache."""
    footprint = footprint_of([("q4_k", "q6_k")] * 46 + [("q4_k", "q4_k"), ("q2_k", "q3_k")])
    counts = []
    for share in ("1%", "3%", "5%", "7%", "20%"):
        plan = plan_memory(footprint, RuntimeConfig.of(expert_cache=share), on(8000))
        counts.append(len(plan.sizes.class_bytes))
        before = plan_memory(equal(footprint), RuntimeConfig.of(expert_cache=plan.cache_bytes), on(8000))
        assert min(shares(plan)) > before.num_slots / footprint.moe.total_experts - 1 / 128
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 3, counts


def test_sizes_within_a_tenth_are_one() -> None:
    assert len(footprint_of([("q4_k", "q4_k"), ("q4_k", "q5_k")]).sizes.class_bytes) == 1


def test_ranks_have_the_sizes_of_a_machine_alone() -> None:
    footprint = footprint_of(Q4_K_M)
    shared = plan_memory(footprint, RuntimeConfig.of(workers="127.0.0.1:1"), on(8000))
    assert shared == dataclasses.replace(plan_memory(footprint, RuntimeConfig(), on(8000)), long_pieces=None)


@pytest.mark.parametrize(("types", "num_sizes", "gain"), [(Q4_K_M, 2, 1.06), (BY_LAYER, 3, 1.6)])
@pytest.mark.parametrize("available", [4000, 8000])
def test_a_gpu_and_the_host_behind_it_have_them_too(types: Types, num_sizes: int, gain: float, available: int) -> None:
    footprint = footprint_of(types)
    plan, before = (
        plan_device_memory(each, RuntimeConfig.of(ram=f"{available}MiB"), on(64_000), available * MIB, available * MIB)
        for each in (footprint, equal(footprint))
    )
    total = footprint.moe.total_experts
    for sizes, slots, num_bytes, equal_slots, equal_bytes in (
        (plan.sizes, plan.num_slots, plan.cache_bytes, before.num_slots, before.cache_bytes),
        (plan.host_sizes, plan.host_slots, plan.host_bytes, before.host_slots, before.host_bytes),
    ):
        assert len(sizes.class_bytes) == num_sizes and slots >= min(total, int(gain * equal_slots))
        assert num_bytes == sizes.num_bytes(slots) <= equal_bytes + sizes.class_bytes[0] or slots == total
    assert plan.pinned_bytes <= plan.host_bytes and plan.total_bytes <= available * MIB
