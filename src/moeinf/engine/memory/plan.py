"""Divides the memory that this process may use among dense weights, KV cache, activations and expert slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from moeinf.config import DEFAULT_CONTEXT, RuntimeConfig, gpu_option
from moeinf.config.size import Bytes, Share
from moeinf.engine.memory.footprint import (
    Footprint,
    activation_bytes,
    device_activation_bytes,
    kept_as_asked,
    sequence_bytes,
)
from moeinf.engine.memory.slots import least_host_slots, ring_bytes, wanted_sizes, wanted_slices, wanted_slots
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.store.placed.expert_slices import SliceSlots
from moeinf.text.quantities import size_text
from moeinf.types import KVFormat, ModelInfo

MIN_CHUNK = 64  # what the prefill chunk is never shortened below for want of memory
FEW_TOKENS: Final = 4  # whose experts are to fit before a chunk that was not asked for takes what others could have
MIN_CONTEXT = 512  # what an automatic context is never shortened below
PREFILL_CHUNK = 512  # where none is given
PROCESS_BYTES = 64 << 20  # interpreter and libraries before anything is loaded; --ram is held to count them
OVERHEAD_BYTES = 24 << 20  # allocator and libraries, still to be touched after this point; beside the text process

# Left to other programs where no size was asked for: a twentieth, within these bounds, but no more than a fifth, nor
# than half of what experts could have. The cache shrinks when they need more, so it has to last for the second until
# that is seen.
FREE_BYTES: Final = (256 << 20, 1 << 30)
MIN_FREE_BYTES: Final = 32 << 20  # what a cache of a size that was asked for keeps available all the same

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
PREFIX_PERCENT: Final = 5  # of the available memory, for the beginnings of earlier prompts, where these are kept
PREFIX_SHARE: Final = 4  # a share of memory for them takes at most a quarter of what could hold experts


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    dense_bytes: int
    kv_bytes: int
    activation_bytes: int
    context: int  # tokens
    prefill_chunk: int  # tokens
    num_slots: int
    sizes: SlotSizes  # of the slots
    prefix_bytes: int = field(default=0, kw_only=True)  # of host memory, for the beginnings of earlier prompts
    program_bytes: int = field(default=0, kw_only=True)  # of host memory, for what this process is still to touch
    kept: KVFormat | None = field(default=None, kw_only=True)  # of keys and values; None: as the checkpoint's numbers
    slices: SliceSlots | None = field(default=None, kw_only=True)  # in place of slots of experts

    @property
    def slot_bytes(self) -> int:
        """Of a slot, one of the largest."""
        return self.sizes.class_bytes[0]

    @property
    def cache_bytes(self) -> int:
        """Of num_slots experts; where these are cut into slices, also of a part of another."""
        if self.slices is not None:
            return self.slices.num_bytes
        return self.sizes.num_bytes(self.num_slots)

    @property
    def held_experts(self) -> float:
        """How many experts the slots hold; not a whole number where these are cut into slices."""
        return self.num_slots if self.slices is None else self.slices.num_slots / self.slices.of_expert

    @property
    def total_bytes(self) -> int:
        """Of the memory of the device that computes."""
        return self.dense_bytes + self.kv_bytes + self.activation_bytes + self.cache_bytes + self.prefix_bytes


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


def plan_memory(footprint: Footprint, config: RuntimeConfig, machine: Machine) -> MemoryPlan:
    """Reserves dense, KV at the context and activations first; the rest is expert slots, unless told otherwise.

    Some of that rest is left to other programs, unless --ram binds, which is taken as it is. Where top_k slots do not
    fit, the prefill chunk is shortened, then a context that was not asked for. A chunk that was not asked for is also
    shortened where the experts of a few tokens do not fit, as long as half of it makes room for those of another one:
    what is read again for each token costs more than shorter chunks of a prompt.

    Raises OutOfMemoryError with the shortfall and the remedies, UsageError for a size or context that cannot be meant.
    """
    footprint = kept_as_asked(footprint, config)
    info, moe, stride = footprint.info, footprint.moe, footprint.layout.stride_bytes
    if said := gpu_option(config):
        raise UsageError(f"{said} is for a GPU, and this run uses none; leave it out, or see why with --device cuda")
    context = wanted_context(info, config)
    chunk = min(config.prefill_chunk or PREFILL_CHUNK, context)
    whole, machine = machine, _within_ram(machine, config)
    free = _left_free(machine) if machine is whole else 0
    token_bytes = moe.top_k * stride
    while True:
        activations = activation_bytes(footprint, chunk, context, config.threads or machine.cores)
        kv_bytes = sequence_bytes(info, context)
        fixed = MemoryPlan(footprint.dense_bytes, kv_bytes, activations, context, chunk, 0, footprint.sizes)
        fixed = replace(fixed, program_bytes=program_bytes(footprint))
        room = machine.available_bytes - fixed.total_bytes - fixed.program_bytes
        if chunk > MIN_CHUNK and config.prefill_chunk is None and token_bytes <= room < FEW_TOKENS * token_bytes:
            half = max(MIN_CHUNK, chunk // 2)
            freed = activations - activation_bytes(footprint, half, context, config.threads or machine.cores)
            if freed < token_bytes:
                break
            chunk = half
        elif room >= token_bytes:
            break
        elif chunk > MIN_CHUNK:  # prompts take longer, but nothing is lost
            chunk = max(MIN_CHUNK, chunk // 2)
        elif config.context is None and context > MIN_CONTEXT:
            context = max(MIN_CONTEXT, context // 2)
        else:
            break
    free = min(free, max(0, room) // 2)
    prefix_bytes = _prefix_bytes(footprint, config, machine, room - free - token_bytes)
    sizes = wanted_sizes(footprint, config, room - free - prefix_bytes)
    num_slots = wanted_slots(sizes, config, room - free - prefix_bytes)
    slices = wanted_slices(footprint, config, num_slots, room - free - prefix_bytes)
    plan = replace(fixed, num_slots=num_slots, prefix_bytes=prefix_bytes, kept=footprint.kept)
    plan = replace(plan, slices=slices, sizes=sizes)
    if plan.total_bytes + plan.program_bytes > machine.available_bytes:
        raise _shortfall(plan, machine)
    return plan


def _prefix_bytes(footprint: Footprint, config: RuntimeConfig, machine: Machine, room: int) -> int:
    """What the beginnings of earlier prompts may take of host memory. room: what is left beside all that has to be.

    A number of bytes is taken as it is; a share takes at most a quarter of that room.
    """
    if footprint.workspace.source:  # of an encoder-decoder model, which answers each text on its own
        return 0
    asked = config.prefix_memory
    if asked is None:
        wanted = config.many_conversations or config.prefix_disk is not None or footprint.info.state_bytes > 0
        asked = Share(PREFIX_PERCENT) if wanted else Bytes(0)
    num_bytes = asked.of(machine.available_bytes)
    return num_bytes if isinstance(asked, Bytes) else min(num_bytes, max(0, room) // PREFIX_SHARE)


def _left_free(machine: Machine) -> int:
    least, most = FREE_BYTES
    return min(most, max(least, machine.available_bytes // 20), machine.available_bytes // 5)


def reserve_bytes(plan: MemoryPlan, machine: Machine) -> int:
    """What the expert cache keeps available to others while it runs: the automatic plan's, or what was left by sizes
    that were asked for."""
    left = machine.available_bytes - plan.total_bytes - plan.program_bytes
    return min(_left_free(machine), max(MIN_FREE_BYTES, left))


def sequence_text(plan: MemoryPlan) -> str:
    """What a sequence takes, and for how many tokens."""
    return f"{size_text(plan.kv_bytes)} for {plan.context} tokens" + (f" ({plan.kept})" if plan.kept else "")


def prefixes_text(plan: MemoryPlan) -> str:
    """To be put behind where a plan's memory goes."""
    return f" · RAM for prefixes {size_text(plan.prefix_bytes)}" if plan.prefix_bytes else ""


def shortenings(plan: MemoryPlan, footprint: Footprint, config: RuntimeConfig) -> list[str]:
    """A note for each part of the plan that memory is too short for."""
    context = wanted_context(footprint.info, config)
    chunk = config.prefill_chunk or (plan.prefill_chunk if isinstance(plan, DevicePlan) else PREFILL_CHUNK)
    limit = "--vram" if isinstance(plan, DevicePlan) else "--ram"
    notes = []
    if plan.context < context:
        notes.append(
            f"memory is short: the context has {plan.context} tokens instead of {context}; free memory, raise "
            f"{limit} where it was given, or insist with --num-ctx {context}"
        )
    if (
        plan.prefill_chunk < min(chunk, plan.context) and not footprint.workspace.source
    ):  # a source goes through as a whole
        notes.append(
            f"memory is short: {plan.prefill_chunk} tokens of a prompt run together instead of {chunk}, which "
            "takes longer"
        )
    return notes


def plan_device_memory(
    footprint: Footprint,
    config: RuntimeConfig,
    machine: Machine,
    device_free_bytes: int,
    device_total_bytes: int,
    has_display: bool = False,
) -> DevicePlan:
    """The same for a GPU, whose dense weights, keys, values and activations come first, with host slots behind it.

    device_free_bytes: what may still be allocated there, read when the driver's context exists. What is only looked up
    by row stays on the host, and is not in footprint.dense_bytes. A --vram below the card is like a smaller card.
    has_display: others need the card too, so that a part of it stays free unless --vram says how much to take.

    Raises as plan_memory does.
    """
    info, moe, stride = footprint.info, footprint.moe, footprint.layout.stride_bytes
    if config.kv_cache != "auto":
        raise UsageError(f"--kv-cache {config.kv_cache} is for the CPU; leave it out, or run with --device cpu")
    limit, available = device_room(config, device_free_bytes, device_total_bytes, has_display)
    context = wanted_context(info, config)
    while True:
        kv_bytes = sequence_bytes(info, context)
        room = available - DEVICE_OVERHEAD_BYTES - footprint.dense_bytes - kv_bytes
        chunk = min(config.prefill_chunk or _largest_chunk(footprint, context, room // ACTIVATION_SHARE), context)
        while (slots_room := room - device_activation_bytes(footprint, chunk, context)) < moe.top_k * stride:
            if chunk <= MIN_CHUNK:
                break
            chunk = max(MIN_CHUNK, chunk // 2)
        if slots_room >= moe.top_k * stride or config.context is not None or context <= MIN_CONTEXT:
            break
        context = max(MIN_CONTEXT, context // 2)
    sizes = wanted_sizes(footprint, config, slots_room)
    num_slots = wanted_slots(sizes, config, slots_room)
    prefix_bytes = _device_prefix_bytes(footprint, config, machine)
    machine = replace(machine, available_bytes=machine.available_bytes - prefix_bytes)
    plan = DevicePlan(
        footprint.dense_bytes,
        kv_bytes,
        room - slots_room,
        context,
        chunk,
        num_slots,
        sizes,
        *_host_slots(footprint, config, machine, num_slots),
        limit,
        prefix_bytes=prefix_bytes,
    )
    if plan.total_bytes + DEVICE_OVERHEAD_BYTES > available:
        raise _device_shortfall(plan, available, config)
    return plan


def device_room(config: RuntimeConfig, free_bytes: int, total_bytes: int, has_display: bool) -> tuple[int, int]:
    """What may be used of a card, and what of that may still be allocated; arguments as for plan_device_memory."""
    left = 0
    if has_display and config.vram is None:
        left = max(DISPLAY_LEFT_BYTES, total_bytes * DISPLAY_LEFT_PERCENT // 100)
    limit = config.vram.of(total_bytes) if config.vram is not None else total_bytes
    limit = min(limit, total_bytes - left)
    return limit, max(0, min(free_bytes - left, limit - CONTEXT_BYTES))


def _device_prefix_bytes(footprint: Footprint, config: RuntimeConfig, machine: Machine) -> int:
    within = _within_ram(machine, config)
    least = HOST_OVERHEAD_BYTES + footprint.tower_bytes
    least += least_host_slots(footprint.moe) * footprint.layout.stride_bytes
    return _prefix_bytes(footprint, config, within, within.available_bytes - least)


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
    machine = _within_ram(machine, config)
    beside, least = HOST_OVERHEAD_BYTES + footprint.tower_bytes, least_host_slots(moe)
    room = machine.available_bytes - beside
    if room < least * stride:
        raise OutOfMemoryError(
            f"not enough memory beside the GPU: {_mib(beside + least * stride)} MiB needed ({least} "
            f"experts {_mib(least * stride)}, CUDA and pictures {_mib(beside)}), {_mib(machine.available_bytes)} "
            f"available ({machine.limited_by}); raise --ram, or free memory"
        )
    if config.ram is None:
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
    if config.vram is not None:
        bound, remedy = f"left of --vram {config.vram} and free on the card", "raise --vram, "
    return OutOfMemoryError(
        f"not enough memory on the GPU: {_mib(need)} MiB needed (dense {_mib(plan.dense_bytes)}, KV cache "
        f"{_mib(plan.kv_bytes)} for {plan.context} tokens, experts {_mib(plan.cache_bytes)}, rest "
        f"{_mib(plan.activation_bytes + DEVICE_OVERHEAD_BYTES)}), {_mib(available)} {bound}; lower --num-ctx, "
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


def smallest_bytes(footprint: Footprint, num_threads: int) -> int:
    """The least memory that the model runs in, the process itself not counted: top_k slots, MIN_CONTEXT tokens."""
    info, moe = footprint.info, footprint.moe
    context = min(MIN_CONTEXT, info.context_length)
    activations = activation_bytes(footprint, min(MIN_CHUNK, context), context, num_threads)
    kv_bytes, cache_bytes = sequence_bytes(info, context), moe.top_k * footprint.layout.stride_bytes
    return footprint.dense_bytes + kv_bytes + program_bytes(footprint) + activations + cache_bytes


def program_bytes(footprint: Footprint) -> int:
    """What this process and the one that holds the tokenizer are still to touch beside what a plan counts."""
    return OVERHEAD_BYTES + footprint.text_bytes


def _within_ram(machine: Machine, config: RuntimeConfig) -> Machine:
    """The machine as --ram leaves it."""
    if config.ram is None:
        return machine
    asked = config.ram.of(machine.total_bytes or machine.available_bytes) - PROCESS_BYTES
    if asked >= machine.available_bytes:
        return machine
    return replace(machine, available_bytes=max(0, asked), limited_by=f"--ram {config.ram}", limit_bytes=0)


def wanted_context(info: ModelInfo, config: RuntimeConfig) -> int:
    """The context before want of memory shortens an automatic one. Raises UsageError for one beyond the model's."""
    if config.context is None:
        return min(info.context_length, DEFAULT_CONTEXT)
    if config.context > info.context_length:
        raise UsageError(f"context {config.context} is beyond the model's {info.context_length} tokens; ask for fewer")
    return config.context


def _shortfall(plan: MemoryPlan, machine: Machine) -> OutOfMemoryError:
    """The error for a plan that does not fit. It counts the whole process, as --ram and `show` do."""
    program = plan.program_bytes + PROCESS_BYTES
    rest, need = plan.activation_bytes + program, plan.total_bytes + program
    kept = f"prefixes {_mib(plan.prefix_bytes)}, " if plan.prefix_bytes else ""
    available = machine.available_bytes + PROCESS_BYTES
    if machine.limit_bytes:  # of a group; it need not pay for the libraries that others have read into memory
        available = min(available, machine.limit_bytes)
    return OutOfMemoryError(
        f"not enough memory: {_mib(need)} MiB needed (dense {_mib(plan.dense_bytes)}, KV cache {_mib(plan.kv_bytes)} "
        f"for {plan.context} tokens, experts {_mib(plan.cache_bytes)}, {kept}rest "
        f"{_mib(rest)}), {available >> 20} MiB available "
        f"({machine.limited_by}); lower --num-ctx, --prefill-chunk or --expert-cache, or "
        f"{'raise --ram' if machine.limited_by.startswith('--ram') else 'free memory'}"
    )


def _mib(num_bytes: int) -> int:
    return -(-num_bytes // (1 << 20))
