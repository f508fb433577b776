"""The sizes of slots in a memory plan: files of mixed types waste less than a tenth, and short memory has fewer."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.footprint import Footprint
from moeinf.engine.memory_plan import MemoryPlan, plan_device_memory, plan_memory
from moeinf.runtime.cache.sizes import slot_sizes
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
    moe = moe or MoeShape(len(types), 128, 8)
    largest = max(layouts, key=lambda layout: layout.stride_bytes)
    sizes = slot_sizes([layout.stride_bytes for layout in layouts], moe)
    return dataclasses.replace(
        FOOTPRINT, moe=moe, layout=largest, layers=layouts, sizes=sizes if len(sizes.class_bytes) > 1 else None
    )


def shares(plan: MemoryPlan) -> list[float]:
    """Of each layer's experts, those that slots of its size hold."""
    assert plan.sizes is not None
    order = plan.sizes.order[: plan.num_slots].tolist()
    whole = plan.sizes.order.tolist()
    return [order.count(each) / whole.count(each) for each in plan.sizes.of_layers.tolist()]


@pytest.mark.parametrize(("types", "num_sizes", "gain"), [(Q4_K_M, 2, 1.06), (BY_LAYER, 3, 1.6)])
@pytest.mark.parametrize("available", [4000, 8000])
def test_no_expert_of_a_mixture_wastes_a_tenth(types: Types, num_sizes: int, gain: float, available: int) -> None:
    footprint = footprint_of(types)
    assert footprint.sizes is not None
    plan = plan_memory(footprint, RuntimeConfig(), on(available))
    before = plan_memory(dataclasses.replace(footprint, sizes=None), RuntimeConfig(), on(available))
    assert plan.sizes == footprint.sizes and len(footprint.sizes.class_bytes) == num_sizes
    assert footprint.sizes.wasted() <= 0.1 and plan.slot_bytes == before.slot_bytes
    assert plan.num_slots >= gain * before.num_slots or plan.num_slots == footprint.moe.total_experts
    found = shares(plan)
    assert max(found) - min(found) < 0.02 and min(found) > before.num_slots / footprint.moe.total_experts


def test_all_experts_fit_into_less_memory() -> None:
    footprint = footprint_of(Q4_K_M)
    room = plan_memory(footprint, RuntimeConfig(expert_cache=None), on(100_000))
    assert room.num_slots == 48 * 128 and room.cache_bytes < 0.94 * room.num_slots * room.slot_bytes
    asked = plan_memory(footprint, RuntimeConfig.of(expert_cache="50%"), on(100_000))
    assert asked.num_slots == pytest.approx(48 * 128 / 2, abs=2) and asked.cache_bytes <= room.cache_bytes / 2


def test_where_memory_is_short_there_are_fewer_sizes() -> None:
    """Two layers alone have smaller experts, and what a token needs of each is much of a small cache."""
    footprint = footprint_of([("q4_k", "q6_k")] * 46 + [("q4_k", "q4_k"), ("q2_k", "q3_k")])
    counts = []
    for share in ("1%", "3%", "5%", "7%", "20%"):
        plan = plan_memory(footprint, RuntimeConfig.of(expert_cache=share), on(8000))
        counts.append(1 if plan.sizes is None else len(plan.sizes.class_bytes))
        equal = plan_memory(
            dataclasses.replace(footprint, sizes=None), RuntimeConfig.of(expert_cache=plan.cache_bytes), on(8000)
        )
        least = min(shares(plan)) if plan.sizes is not None else plan.num_slots / footprint.moe.total_experts
        assert least > equal.num_slots / footprint.moe.total_experts - 1 / 128
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 3, counts


def test_equal_slots_for_ranks_gpus_and_sizes_within_a_tenth() -> None:
    footprint = footprint_of(Q4_K_M)
    shared = RuntimeConfig(workers="127.0.0.1:1")
    assert plan_memory(footprint, shared, on(8000)).sizes is None
    device = plan_device_memory(footprint, RuntimeConfig(), on(64_000), 16_000 * MIB, 16_000 * MIB)
    assert device.sizes is None and device.cache_bytes == device.num_slots * device.slot_bytes
    assert footprint_of([("q4_k", "q4_k"), ("q4_k", "q5_k")]).sizes is None
