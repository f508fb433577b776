"""Divides the memory that this process may use among dense weights, KV cache, activations and expert slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from moeinf.config import DEFAULT_CONTEXT, RuntimeConfig, gpu_option
from moeinf.config.size import Bytes, Share
from moeinf.engine.memory.footprint import Footprint, activation_bytes, kept_as_asked, sequence_bytes, shared_tokens
from moeinf.engine.memory.served_context import served_context
from moeinf.engine.memory.slots import wanted_sizes, wanted_slices, wanted_slots
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.store.placed.expert_slices import SliceSlots
from moeinf.types import KVFormat, ModelInfo

MIN_CHUNK = 64  # what the prefill chunk is never shortened below for want of memory
FEW_TOKENS: Final = 4  # whose experts are to fit before a chunk that was not asked for takes what others could have
MIN_CONTEXT = 512  # what an automatic context is never shortened below
PREFILL_CHUNK = 512  # where none is given
MOST_AT_ONCE: Final = 4096  # tokens of a prompt in a piece that slots lend memory to, or what is left beside all
UNUSED_SHARE: Final = 4  # a longer piece takes at most a quarter of what nobody has a use for
PROCESS_BYTES = 64 << 20  # interpreter and libraries before anything is loaded; --ram is held to count them
OVERHEAD_BYTES = 8 << 20  # what the allocator and libraries are still to touch; beside the text process
SERVER_BYTES: Final = 16 << 20  # of libraries and clients, where several answers are made side by side

# Left to other programs where no size was asked for: a twentieth, within these bounds, but no more than a fifth, nor
# than half of what experts could have. The cache shrinks when they need more, so it has to last for the second until
# that is seen.
FREE_BYTES: Final = (256 << 20, 1 << 30)
MIN_FREE_BYTES: Final = 32 << 20  # what a cache of a size that was asked for keeps available all the same

SERVED_SEQUENCES: Final = 4  # with which a context that nobody asked for is to fit, as their number follows from it
PREFIX_PERCENT: Final = 5  # of the available memory, for the beginnings of earlier prompts, where these are kept
PREFIX_SHARE: Final = 4  # a share of memory for them takes at most a quarter of what could hold experts


@dataclass(frozen=True, slots=True)
class LongPieces:
    """Pieces of a long prompt, whose activations take the memory of slots while they are computed."""

    chunk: int  # tokens, for which the plan has activations by itself
    tokens: int  # of the longest such piece
    num_bytes: int  # which that one takes of the slots

    def bytes_of(self, tokens: int) -> int:
        """What a piece of so many tokens takes of the slots: activations grow no faster than in proportion."""
        beyond = min(max(0, tokens - self.chunk), self.tokens - self.chunk)
        return -(-self.num_bytes * beyond // (self.tokens - self.chunk))


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
    long_pieces: LongPieces | None = field(default=None, kw_only=True)  # None: a prompt goes in pieces of its chunk

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
    def most_at_once(self) -> int:
        """How many tokens of a prompt run together at most."""
        return self.prefill_chunk if self.long_pieces is None else self.long_pieces.tokens

    @property
    def total_bytes(self) -> int:
        """Of the memory of the device that computes."""
        return self.dense_bytes + self.kv_bytes + self.activation_bytes + self.cache_bytes + self.prefix_bytes


def plan_memory(footprint: Footprint, config: RuntimeConfig, machine: Machine) -> MemoryPlan:
    """Reserves dense, KV at the context and activations first; the rest is expert slots, unless told otherwise.

    A context that was not asked for is longer where many conversations come: see served_context.

    Some of that rest is left to other programs, unless --ram binds, which is taken as it is. Where top_k slots do not
    fit, the prefill chunk is shortened, then a context that was not asked for. A chunk that was not asked for is also
    shortened where the experts of a few tokens do not fit, as long as half of it makes room for those of another one:
    what is read again for each token costs more than shorter chunks of a prompt.

    Raises OutOfMemoryError with the shortfall and the remedies, UsageError for a size or context that cannot be meant.
    """
    footprint = kept_as_asked(footprint, config)
    if said := gpu_option(config):
        raise UsageError(f"{said} is for a GPU, and this run uses none; leave it out, or see why with --device cuda")
    whole, machine = machine, within_ram(machine, config)
    free = _left_free(machine) if machine is whole else 0
    fixed, room = _without_slots(footprint, config, machine)
    free = min(free, max(0, room) // 2)
    prefix_bytes = prefix_bytes_of(footprint, config, machine, room - free - _token_bytes(footprint))
    sizes = wanted_sizes(footprint, config, room - free - prefix_bytes)
    num_slots = wanted_slots(sizes, config, room - free - prefix_bytes)
    slices = wanted_slices(footprint, config, num_slots, room - free - prefix_bytes)
    plan = replace(fixed, num_slots=num_slots, prefix_bytes=prefix_bytes, kept=footprint.kept)
    plan = replace(plan, slices=slices, sizes=sizes)
    plan = replace(plan, kv_bytes=plan.kv_bytes + _more_tokens_bytes(plan, footprint, config, room - free))
    if plan.total_bytes + plan.program_bytes > machine.available_bytes:
        raise _shortfall(plan, machine, config.parallel)
    threads = config.compute.threads or machine.cores
    unused = machine.available_bytes - free - plan.total_bytes - plan.program_bytes
    plan = _longer_chunk(plan, footprint, config, threads, unused // UNUSED_SHARE)
    return replace(plan, long_pieces=_long_pieces(plan, footprint, config, threads))


def _without_slots(footprint: Footprint, config: RuntimeConfig, machine: Machine) -> tuple[MemoryPlan, int]:
    """The plan but for slots and prefixes, shortened as plan_memory says, and the memory that it leaves to them."""
    token_bytes, threads = _token_bytes(footprint), config.compute.threads or machine.cores
    chunk = config.memory.prefill_chunk or PREFILL_CHUNK
    context = wanted_context(footprint.info, config)
    if not footprint.workspace.source:
        others = footprint.dense_bytes + program_bytes(footprint, config.parallel)

        def room_with(tokens: int) -> int:
            return machine.available_bytes - others - activation_bytes(footprint, chunk, tokens, threads)

        def tokens(context: int) -> int:
            return shared_tokens(context, SERVED_SEQUENCES)

        context = served_context(
            context, footprint.info.context_length, config, room_with, tokens, token_and_experts(footprint)
        )
    chunk = min(chunk, context)
    while True:
        activations = activation_bytes(footprint, chunk, context, threads)
        kv_bytes = sequence_bytes(footprint.info, shared_tokens(context, config.parallel or 1))
        fixed = MemoryPlan(footprint.dense_bytes, kv_bytes, activations, context, chunk, 0, footprint.sizes)
        fixed = replace(fixed, program_bytes=program_bytes(footprint, config.parallel))
        room = machine.available_bytes - fixed.total_bytes - fixed.program_bytes
        if chunk > MIN_CHUNK and config.memory.prefill_chunk is None and token_bytes <= room < FEW_TOKENS * token_bytes:
            half = max(MIN_CHUNK, chunk // 2)
            if activations - activation_bytes(footprint, half, context, threads) < token_bytes:
                return fixed, room
            chunk = half
        elif room >= token_bytes:
            return fixed, room
        elif chunk > MIN_CHUNK:  # prompts take longer, but nothing is lost
            chunk = max(MIN_CHUNK, chunk // 2)
        elif config.memory.context is None and context > MIN_CONTEXT:
            context = max(MIN_CONTEXT, context // 2)
        else:
            return fixed, room


def _longer_chunk(
    plan: MemoryPlan, footprint: Footprint, config: RuntimeConfig, num_threads: int, room: int
) -> MemoryPlan:
    """The same plan with the longest chunk that so much more memory has room for, where all experts have a slot and
    none was asked for: an expert that is given twice as many rows at once computes them faster.
    """
    if not _may_be_longer(plan, footprint, config) or plan.num_slots < footprint.moe.total_experts:
        return plan
    for tokens in _longer(plan):
        activations = activation_bytes(footprint, tokens, plan.context, num_threads)
        if activations - plan.activation_bytes <= room:
            return replace(plan, prefill_chunk=tokens, activation_bytes=activations)
    return plan


def _may_be_longer(plan: MemoryPlan, footprint: Footprint, config: RuntimeConfig) -> bool:
    """Whether prompts may go in pieces beyond PREFILL_CHUNK."""
    asked = config.memory.prefill_chunk is not None
    return not (asked or config.compute.workers or footprint.workspace.source) and plan.prefill_chunk >= PREFILL_CHUNK


def _longer(plan: MemoryPlan) -> range:
    """Lengths of pieces beyond the chunk, the longest first."""
    chunk = plan.prefill_chunk
    return range(min(MOST_AT_ONCE, plan.context // chunk * chunk), chunk, -chunk)


def _long_pieces(plan: MemoryPlan, footprint: Footprint, config: RuntimeConfig, num_threads: int) -> LongPieces | None:
    """The longest pieces of a prompt for whose activations no more than half of the slots are needed, and that leave
    half as many as a layer has experts. None where no piece is longer than the chunk, or that was asked for.

    Each piece takes nearly all experts through the slots, so that half as many pieces read half as much; and an expert
    that is given twice as many rows at once computes them faster.
    """
    chunk, moe = plan.prefill_chunk, footprint.moe
    if not _may_be_longer(plan, footprint, config) or plan.num_slots == moe.total_experts:
        return None
    room = min(plan.cache_bytes // 2, plan.cache_bytes - moe.num_experts // 2 * plan.slot_bytes)
    for tokens in _longer(plan):
        more = activation_bytes(footprint, tokens, plan.context, num_threads) - plan.activation_bytes
        if more <= room:
            return LongPieces(chunk, tokens, more)
    return None


def token_and_experts(footprint: Footprint) -> tuple[int, int]:
    """Bytes of a token's keys and values, and of all experts."""
    return footprint.info.kv_bytes_per_token, footprint.sizes.num_bytes(footprint.moe.total_experts)


def _more_tokens_bytes(plan: MemoryPlan, footprint: Footprint, config: RuntimeConfig, room: int) -> int:
    """What sequences get beside, of the room that all experts leave: up to its full context for each.

    Of a context that nobody asked for up to DEFAULT_CONTEXT, so that other models have room beside.
    """
    if plan.num_slots < footprint.moe.total_experts:
        return 0
    each = plan.context if config.memory.context is not None else min(plan.context, DEFAULT_CONTEXT)
    wanted = sequence_bytes(footprint.info, each * (config.parallel or 1)) - plan.kv_bytes
    return max(0, min(wanted, room - plan.prefix_bytes - plan.cache_bytes))


def _token_bytes(footprint: Footprint) -> int:
    """Of the slots that a token needs at once."""
    return footprint.moe.top_k * footprint.layout.stride_bytes


def prefix_bytes_of(footprint: Footprint, config: RuntimeConfig, machine: Machine, room: int) -> int:
    """What the beginnings of earlier prompts may take of host memory. room: what is left beside all that has to be.

    A number of bytes is taken as it is; a share takes at most a quarter of that room.
    """
    if footprint.workspace.source:  # of an encoder-decoder model, which answers each text on its own
        return 0
    asked = config.memory.prefix_memory
    if asked is None:
        recurrent = footprint.info.state_bytes > 0 and not config.in_bulk  # of whose states not all are rounded alike
        wanted = config.many_conversations or config.memory.prefix_disk is not None or recurrent
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


def smallest_bytes(footprint: Footprint, num_threads: int) -> int:
    """The least memory that the model runs in, the process itself not counted: top_k slots, MIN_CONTEXT tokens."""
    info, moe = footprint.info, footprint.moe
    context = min(MIN_CONTEXT, info.context_length)
    activations = activation_bytes(footprint, min(MIN_CHUNK, context), context, num_threads)
    kv_bytes, cache_bytes = sequence_bytes(info, context), moe.top_k * footprint.layout.stride_bytes
    return footprint.dense_bytes + kv_bytes + program_bytes(footprint) + activations + cache_bytes


def program_bytes(footprint: Footprint, parallel: int = 1) -> int:
    """What this process and the one that holds the tokenizer are still to touch beside what a plan counts.

    parallel: as of RuntimeConfig.
    """
    return OVERHEAD_BYTES + (SERVER_BYTES if parallel != 1 else 0) + footprint.text_bytes


def within_ram(machine: Machine, config: RuntimeConfig) -> Machine:
    """The machine as --ram leaves it."""
    if config.memory.ram is None:
        return machine
    asked = config.memory.ram.of(machine.total_bytes or machine.available_bytes) - PROCESS_BYTES
    if asked >= machine.available_bytes:
        return machine
    return replace(machine, available_bytes=max(0, asked), limited_by=f"--ram {config.memory.ram}", limit_bytes=0)


def wanted_context(info: ModelInfo, config: RuntimeConfig) -> int:
    """The context before want of memory shortens an automatic one. Raises UsageError for one beyond the model's."""
    if config.memory.context is None:
        return min(info.context_length, DEFAULT_CONTEXT)
    if config.memory.context > info.context_length:
        raise UsageError(
            f"context {config.memory.context} is beyond the model's {info.context_length} tokens; ask for fewer"
        )
    return config.memory.context


def _shortfall(plan: MemoryPlan, machine: Machine, parallel: int) -> OutOfMemoryError:
    """The error for a plan that does not fit. It counts the whole process, as --ram and `show` do.

    parallel: answers that are made side by side.
    """
    tokens = f"{plan.context} tokens" if parallel == 1 else f"{parallel} sequences of up to {plan.context} tokens"
    lower = "--num-ctx" if parallel == 1 else "--parallel, --num-ctx"
    program = plan.program_bytes + PROCESS_BYTES
    rest, need = plan.activation_bytes + program, plan.total_bytes + program
    kept = f"prefixes {mib(plan.prefix_bytes)}, " if plan.prefix_bytes else ""
    available = machine.available_bytes + PROCESS_BYTES
    if machine.limit_bytes:  # of a group; it need not pay for the libraries that others have read into memory
        available = min(available, machine.limit_bytes)
    return OutOfMemoryError(
        f"not enough memory: {mib(need)} MiB needed (dense {mib(plan.dense_bytes)}, KV cache {mib(plan.kv_bytes)} "
        f"for {tokens}, experts {mib(plan.cache_bytes)}, {kept}rest "
        f"{mib(rest)}), {available >> 20} MiB available "
        f"({machine.limited_by}); lower {lower}, --prefill-chunk or --expert-cache, or "
        f"{'raise --ram' if machine.limited_by.startswith('--ram') else 'free memory'}"
    )


def mib(num_bytes: int) -> int:
    return -(-num_bytes // (1 << 20))
