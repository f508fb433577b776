"""Which slots a memory plan gives to experts: how many, of which sizes, and whether each holds a slice."""

from __future__ import annotations

from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint
from moeinf.errors import UsageError
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.store.placed.expert_slices import SliceSlots
from moeinf.text.quantities import at_least_text, binary_size_text
from moeinf.types import MoeShape

RING_BYTES: Final = 256 << 20  # of host memory through which experts pass, where two tokens' layers take no more
SPARE_HOST_SLOTS: Final = 2  # beside top_k: so that a read lands while a layer's experts are being copied


def wanted_sizes(footprint: Footprint, config: RuntimeConfig, room: int) -> SlotSizes:
    """Of slots in so much memory, or in what was asked for. Where experts are cut into slices, all have one."""
    sizes = footprint.sizes
    all_bytes = sizes.num_bytes(len(sizes.order))
    room = room if config.memory.expert_cache is None else config.memory.expert_cache.of(all_bytes)
    if footprint.slices is not None and not config.compute.workers and room < all_bytes:
        return sizes.equal()
    return sizes.worth_in(room)


def ring_bytes(sizes: SlotSizes) -> int:
    """Of host slots through which experts pass into a device that holds them all."""
    return max(2 * sizes.top_k * sizes.class_bytes[0], RING_BYTES)


def least_host_slots(moe: MoeShape) -> int:
    """How many slots of host memory a GPU needs behind its own."""
    return min(moe.top_k + SPARE_HOST_SLOTS, moe.total_experts)


def wanted_slots(sizes: SlotSizes, config: RuntimeConfig, room: int) -> int:
    """How many slots there are in so much memory, or in what was asked for. Raises UsageError for too few."""
    top_k, stride = sizes.top_k, sizes.class_bytes[0]
    if config.memory.expert_cache is None:
        return max(top_k, sizes.slots_in(room))
    slots = sizes.slots_in(config.memory.expert_cache.of(sizes.num_bytes(len(sizes.order))))
    if slots < top_k:
        raise UsageError(
            f"--expert-cache {config.memory.expert_cache} holds {slots} experts of {binary_size_text(stride)}; "
            f"a token needs {top_k} at once: give at least {at_least_text(top_k * stride)}"
        )
    return slots


def wanted_slices(footprint: Footprint, config: RuntimeConfig, num_slots: int, room: int) -> SliceSlots | None:
    """Slots of slices in the memory of so many large experts and what is left; other machines share out whole ones."""
    slices, stride, total = footprint.slices, footprint.layout.stride_bytes, footprint.moe.total_experts
    if slices is None or num_slots == total or config.compute.workers:
        return None
    room = room if config.memory.expert_cache is None else config.memory.expert_cache.of(total * stride)
    return slices.slots_in(max(num_slots * stride, min(room, total * stride - slices.slot_bytes)))
