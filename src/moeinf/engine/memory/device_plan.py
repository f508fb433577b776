"""Divides a GPU's memory among dense weights, KV cache, activations and expert slots, and plans the slots behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint, device_activation_bytes, sequence_bytes
from moeinf.engine.memory.plan import (
    MIN_CHUNK,
    MIN_CONTEXT,
    PREFILL_CHUNK,
    MemoryPlan,
    mib,
    prefix_bytes_of,
    token_and_experts,
    wanted_context,
    within_ram,
)
from moeinf.engine.memory.served_context import served_context
from moeinf.engine.memory.slots import least_host_slots, ring_bytes, wanted_sizes, wanted_slots
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.runtime.cache.slot_sizes import SlotSizes

CONTEXT_BYTES: Final = 512 << 20  # of the GPU's memory, for the driver's context; a --vram budget has to hold it too
DEVICE_OVERHEAD_BYTES: Final = 512 << 20  # cuBLAS, kernels loaded at first use, graphs, what the allocator cannot reuse
HOST_OVERHEAD_BYTES: Final = 1 << 30  # CUDA libraries, the driver's context, weights passing through, the policy
HOST_LEFT_BYTES: Final = 3 << 30  # of a machine's memory, at least, for that and for whatever else runs on it: pages
HOST_LEFT_PERCENT: Final = 15  # that are pinned for a GPU are neither swapped nor dropped when others need memory
PINNED_PERCENT: Final = 75  # of a machine's memory, at most
DISPLAY_LEFT_BYTES: Final = 1 << 30  # of a card, at least, where a display or Windows shares it: that is not refused
DISPLAY_LEFT_PERCENT: Final = 8  # memory that is taken, but moves it to the host's, which is ten times slower
MAX_DEVICE_CHUNK: Final = 8192  # tokens of a prompt; beyond, no expert is read less often and nothing computes faster
ACTIVATION_SHARE: Final = 8  # an automatic chunk takes at most an eighth of what experts could use


@dataclass(frozen=True, slots=True)
class DevicePlan(MemoryPlan):
    """The division of a GPU's memory, and the slots in host memory behind it.

    Keys, values, activations and num_slots are the GPU's. Copies are inclusive: an expert in a slot of the GPU may or
    may not have a slot of the host as well.
    """

    host_sizes: SlotSizes  # of the host's slots
    host_slots: int
    pinned_slots: int  # the first so many of the host's: the GPU reads what lies there by itself
    limit_bytes: int  # of the GPU's memory that this process may use: --vram, or the card but for what stays free

    @property
    def total_bytes(self) -> int:
        return self.dense_bytes + self.kv_bytes + self.activation_bytes + self.cache_bytes

    @property
    def host_bytes(self) -> int:
        return self.host_sizes.num_bytes(self.host_slots)

    @property
    def pinned_bytes(self) -> int:
        return self.host_sizes.num_bytes(self.pinned_slots)


def plan_device_memory(
    footprint: Footprint,
    config: RuntimeConfig,
    machine: Machine,
    device_free_bytes: int,
    device_total_bytes: int,
    has_display: bool = False,
) -> DevicePlan:
    """As plan_memory: the GPU's dense weights, keys, values and activations come first. Host slots are behind it.

    device_free_bytes: what may still be allocated there, read when the driver's context exists. What is only looked up
    by row stays on the host, and is not in footprint.dense_bytes. A --vram below the card is like a smaller card.
    has_display: others need the card too, so that a part of it stays free unless --vram says how much to take.

    Raises as plan_memory does.
    """
    if config.memory.kv_cache != "auto":
        raise UsageError(f"--kv-cache {config.memory.kv_cache} is for the CPU; leave it out, or run with --device cpu")
    limit, available = device_room(config, device_free_bytes, device_total_bytes, has_display)
    fixed = _without_slots(footprint, config, available - DEVICE_OVERHEAD_BYTES)
    slots_room = available - DEVICE_OVERHEAD_BYTES - sum(fixed[:3])
    sizes = wanted_sizes(footprint, config, slots_room)
    num_slots = wanted_slots(sizes, config, slots_room)
    prefix_bytes = _device_prefix_bytes(footprint, config, machine)
    machine = replace(machine, available_bytes=machine.available_bytes - prefix_bytes)
    host = _host_slots(footprint, config, machine, num_slots)
    plan = DevicePlan(*fixed, num_slots, sizes, *host, limit, prefix_bytes=prefix_bytes)
    if plan.total_bytes + DEVICE_OVERHEAD_BYTES > available:
        raise _device_shortfall(plan, available, config)
    return plan


def _without_slots(footprint: Footprint, config: RuntimeConfig, room: int) -> tuple[int, int, int, int, int]:
    """Bytes of dense weights, keys and values, and activations, then tokens of context and chunk, in so much room.

    Where top_k slots do not fit, the chunk is shortened, then a context that was not asked for.
    """
    least, context = footprint.moe.top_k * footprint.layout.stride_bytes, wanted_context(footprint.info, config)
    if len(config.compute.devices) == 1 and not footprint.workspace.source:

        def room_with(tokens: int) -> int:
            return room - footprint.dense_bytes - device_activation_bytes(footprint, PREFILL_CHUNK, tokens)

        def tokens(context: int) -> int:
            return (config.parallel or 1) * context

        context = served_context(
            context, footprint.info.context_length, config, room_with, tokens, token_and_experts(footprint)
        )
    while True:
        kv_bytes = sequence_bytes(footprint.info, (config.parallel or 1) * context)
        left = room - footprint.dense_bytes - kv_bytes
        chunk = min(
            config.memory.prefill_chunk or _largest_chunk(footprint, context, left // ACTIVATION_SHARE), context
        )
        while left - (activations := device_activation_bytes(footprint, chunk, context)) < least and chunk > MIN_CHUNK:
            chunk = max(MIN_CHUNK, chunk // 2)
        if left - activations >= least or config.memory.context is not None or context <= MIN_CONTEXT:
            return footprint.dense_bytes, kv_bytes, activations, context, chunk
        context = max(MIN_CONTEXT, context // 2)


def device_room(config: RuntimeConfig, free_bytes: int, total_bytes: int, has_display: bool) -> tuple[int, int]:
    """What may be used of a card, and what of that may still be allocated; arguments as for plan_device_memory."""
    left = 0
    if has_display and config.memory.vram is None:
        left = max(DISPLAY_LEFT_BYTES, total_bytes * DISPLAY_LEFT_PERCENT // 100)
    limit = config.memory.vram.of(total_bytes) if config.memory.vram is not None else total_bytes
    limit = min(limit, total_bytes - left)
    return limit, max(0, min(free_bytes - left, limit - CONTEXT_BYTES))


def _device_prefix_bytes(footprint: Footprint, config: RuntimeConfig, machine: Machine) -> int:
    within = within_ram(machine, config)
    least = HOST_OVERHEAD_BYTES + footprint.tower_bytes
    least += least_host_slots(footprint.moe) * footprint.layout.stride_bytes
    return prefix_bytes_of(footprint, config, within, within.available_bytes - least)


def _largest_chunk(footprint: Footprint, context: int, room: int) -> int:
    """The largest power of two whose activations take no more than `room`, from MIN_CHUNK to MAX_DEVICE_CHUNK."""
    chunk = MAX_DEVICE_CHUNK
    while chunk > MIN_CHUNK and (chunk >= 2 * context or device_activation_bytes(footprint, chunk, context) > room):
        chunk //= 2
    return chunk


def _host_slots(
    footprint: Footprint, config: RuntimeConfig, machine: Machine, device_slots: int
) -> tuple[SlotSizes, int, int]:
    """Of which sizes the host's slots are, how many there are, and how many of them may be pinned: as many as memory
    allows, at most one for each expert; where the GPU holds all experts, a ring that they pass through.

    Without a --ram, others on the machine keep a part of its memory, unless one token's experts need that. The dense
    weights pass through a small buffer before the slots are taken. Raises OutOfMemoryError.
    """
    moe, stride = footprint.moe, footprint.layout.stride_bytes
    whole = machine.total_bytes if machine.limited_by == "machine" else 0  # a control group's is what it has left
    whole = whole or machine.available_bytes
    machine = within_ram(machine, config)
    beside, least = HOST_OVERHEAD_BYTES + footprint.tower_bytes, least_host_slots(moe)
    room = machine.available_bytes - beside
    if room < least * stride:
        raise OutOfMemoryError(
            f"not enough memory beside the GPU: {mib(beside + least * stride)} MiB needed ({least} "
            f"experts {mib(least * stride)}, CUDA and pictures {mib(beside)}), {mib(machine.available_bytes)} "
            f"available ({machine.limited_by}); raise --ram, or free memory"
        )
    if config.memory.ram is None:
        left = max(HOST_LEFT_BYTES, whole * HOST_LEFT_PERCENT // 100)
        room = machine.available_bytes - left - footprint.tower_bytes
    if device_slots == moe.total_experts:
        room = min(room, ring_bytes(footprint.sizes))
    room, pinned = max(room, least * stride), max(whole * PINNED_PERCENT // 100, least * stride)
    sizes = footprint.sizes.worth_in(room)
    return sizes, sizes.slots_in(room), sizes.slots_in(min(room, pinned))


def _device_shortfall(plan: DevicePlan, available: int, config: RuntimeConfig) -> OutOfMemoryError:
    need = plan.total_bytes + DEVICE_OVERHEAD_BYTES
    bound, remedy = "free on the card", ""
    if config.memory.vram is not None:
        bound, remedy = f"left of --vram {config.memory.vram} and free on the card", "raise --vram, "
    return OutOfMemoryError(
        f"not enough memory on the GPU: {mib(need)} MiB needed (dense {mib(plan.dense_bytes)}, KV cache "
        f"{mib(plan.kv_bytes)} for {plan.context} tokens, experts {mib(plan.cache_bytes)}, rest "
        f"{mib(plan.activation_bytes + DEVICE_OVERHEAD_BYTES)}), {mib(available)} {bound}; lower --num-ctx, "
        f"--prefill-chunk or --expert-cache, {remedy}or run with --device cpu"
    )


def smallest_device_bytes(footprint: Footprint) -> tuple[int, int]:
    """The least --vram, and memory of the machine, in which a GPU runs the model: top_k slots, MIN_CONTEXT tokens."""
    info, moe, stride = footprint.info, footprint.moe, footprint.layout.stride_bytes
    context = min(MIN_CONTEXT, info.context_length)
    activations = device_activation_bytes(footprint, min(MIN_CHUNK, context), context)
    kv_bytes = sequence_bytes(info, context)
    overhead = CONTEXT_BYTES + DEVICE_OVERHEAD_BYTES
    return (
        overhead + footprint.dense_bytes + kv_bytes + activations + moe.top_k * stride,
        HOST_OVERHEAD_BYTES + footprint.tower_bytes + least_host_slots(moe) * stride,
    )
