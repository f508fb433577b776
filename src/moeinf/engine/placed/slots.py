"""Which slots a memory plan gives to experts: how many, of which sizes, and whether each holds a slice."""

from __future__ import annotations

from moeinf.config import RuntimeConfig
from moeinf.engine.footprint import Footprint
from moeinf.engine.placed.slices import SliceSlots
from moeinf.errors import UsageError
from moeinf.runtime.cache.sizes import SlotSizes
from moeinf.text.quantities import at_least_text, binary_size_text


def wanted_sizes(footprint: Footprint, config: RuntimeConfig, room: int) -> SlotSizes | None:
    """Of slots in so much memory; None: all have one. Other machines share out equal slots, and slices have them."""
    sizes = footprint.sizes
    if sizes is None or config.workers:
        return None
    all_bytes = sizes.num_bytes(footprint.moe.total_experts)
    room = room if config.expert_cache is None else config.expert_cache.of(all_bytes)
    if footprint.slices is not None and room < all_bytes:
        return None
    sizes = sizes.worth_in(room)
    return sizes if len(sizes.class_bytes) > 1 else None


def wanted_slots(sizes: SlotSizes, config: RuntimeConfig, room: int) -> int:
    """How many slots there are in so much memory, or in what was asked for. Raises UsageError for too few."""
    top_k, stride = sizes.top_k, sizes.class_bytes[0]
    if config.expert_cache is None:
        return max(top_k, sizes.slots_in(room))
    slots = sizes.slots_in(config.expert_cache.of(sizes.num_bytes(len(sizes.order))))
    if slots < top_k:
        raise UsageError(
            f"--expert-cache {config.expert_cache} holds {slots} experts of {binary_size_text(stride)}; "
            f"a token needs {top_k} at once: give at least {at_least_text(top_k * stride)}"
        )
    return slots


def wanted_slices(footprint: Footprint, config: RuntimeConfig, num_slots: int, room: int) -> SliceSlots | None:
    """Slots of slices in the memory of so many large experts and what is left; other machines share out whole ones."""
    slices, stride, total = footprint.slices, footprint.layout.stride_bytes, footprint.moe.total_experts
    if slices is None or num_slots == total or config.workers:
        return None
    room = room if config.expert_cache is None else config.expert_cache.of(total * stride)
    return slices.slots_in(max(num_slots * stride, min(room, total * stride - slices.slot_bytes)))
