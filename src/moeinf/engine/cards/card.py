"""The experts of a model on one GPU: slots in its memory, behind them slots in host memory, and the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from moeinf._native import Arena, IdleWindow
from moeinf.distributed.ownership import Capacity, owners, shares
from moeinf.engine.build_context import BuildContext, policy_of, prefetcher_of
from moeinf.engine.cards.stages import Stage, stages_of
from moeinf.engine.memory.device_plan import CONTEXT_BYTES, PINNED_PERCENT, DevicePlan, plan_device_memory
from moeinf.engine.memory.plan import wanted_context
from moeinf.engine.memory.plan_notes import sequence_text
from moeinf.engine.memory.slots import SPARE_HOST_SLOTS, least_host_slots, ring_bytes
from moeinf.engine.weights.device_form import ExpertConversion, by_layer
from moeinf.engine.weights.expert_files import placed_reads
from moeinf.errors import OutOfMemoryError
from moeinf.gpu.arena import DeviceArena
from moeinf.gpu.matrix import expert_parts_of
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.gpu.program import DecodeProgram
from moeinf.hardware import usable_cores
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import BoolArray, SlotRegion, exists_by_key
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.gpu.converted_reads import ConvertedReads
from moeinf.runtime.gpu.copies import Copies
from moeinf.runtime.gpu.device_slots import DeviceCompute, DeviceSlots
from moeinf.runtime.gpu.divided_experts import FirstTier
from moeinf.runtime.gpu.host_link import HostLink
from moeinf.runtime.gpu.host_slots import HostSlots
from moeinf.runtime.io.reader import open_reader
from moeinf.runtime.io.reader_protocol import Reader, ReadFacts
from moeinf.runtime.policy.policy_protocol import DevicePolicy, Listener
from moeinf.text.quantities import size_text
from moeinf.types import ExpertLayout, MoeShape


@dataclass(frozen=True, slots=True)
class Part:
    """A card, how its memory is divided, by key which experts it owns (None for all), and the layers that it computes,
    where not all are the first card's."""

    gpu: OpenGpu
    plan: DevicePlan
    mine: BoolArray | None = None
    stage: Stage | None = None


def parts_of(context: BuildContext, gpu: OpenGpu, others: Sequence[OpenGpu]) -> list[Part]:
    """Divides the memory of a card and, if there are others, shares the experts out among all.

    Layers are divided as well where the first card does not hold their dense weights, with keys and values of a context
    as it was asked for. Raises OutOfMemoryError.
    """
    if not others:
        host, footprint = context.host, context.device_footprint
        sizes = gpu.free_bytes, gpu.total_bytes, gpu.has_display
        return [Part(gpu, plan_device_memory(footprint, host.config, host.machine, *sizes))]
    gpus, family = [gpu, *others], context.weights.family
    divisible = isinstance(family, DecoderFamily) and family.divisible
    try:
        whole = shared_out(context, gpus)
    except OutOfMemoryError as error:
        if divisible:
            return shared_out(context, gpus, divided=True)
        raise OutOfMemoryError(
            f"{error}; the layers of {family.name} are not divided among cards: name the one with most memory first"
        ) from error
    if divisible and whole[0].plan.context < wanted_context(context.manifest.info, context.host.config):
        with suppress(OutOfMemoryError):  # a shorter context is then all that there is room for
            return shared_out(context, gpus, divided=True)
    return whole


def shared_out(context: BuildContext, gpus: Sequence[OpenGpu], divided: bool = False) -> list[Part]:
    """Shares the experts out among cards, of which the first has all layers; divided: each has some of them.

    Cards own as many experts as they have slots for, and even shares of the rest. What host memory has room for is
    shared as the experts are: none of them is there twice. Raises OutOfMemoryError.
    """
    footprint, host, moe = context.device_footprint, context.host, context.manifest.moe
    beside = replace(footprint, dense_bytes=0, info=replace(footprint.info, kv_bytes_per_token=0, state_bytes=0))
    stages: list[Stage | None] = [*stages_of(context, gpus)] if divided else [None] * len(gpus)
    sizes = [footprint, *[beside] * (len(gpus) - 1)]
    config, plans = host.config, list[DevicePlan]()
    for gpu, stage, size in zip(gpus, stages, sizes, strict=True):
        size = size if stage is None else stage.footprint
        room = gpu.free_bytes, gpu.total_bytes, gpu.has_display
        try:
            plans.append(plan_device_memory(size, config, host.machine, *room))
        except OutOfMemoryError as error:
            which = f"card {len(plans) + 1} of {len(gpus)}" + ("" if stage is None else f", for {stage.text()}")
            raise OutOfMemoryError(f"{which}: {error}") from error
        config = config.changed(context=plans[0].context, prefill_chunk=plans[0].prefill_chunk)
    owner = owners(moe.num_keys, shares(moe.total_experts, [Capacity(each.num_slots, 1.0) for each in plans]))
    exists = exists_by_key(moe)
    parts = []
    for number, (gpu, each, stage) in enumerate(zip(gpus, plans, stages, strict=True)):
        mine = (owner == number) & exists
        parts.append(Part(gpu, _share_of(each, plans[0], moe, mine), mine, stage))
    return parts


def _share_of(plan: DevicePlan, first: DevicePlan, moe: MoeShape, mine: BoolArray) -> DevicePlan:
    """A card's plan with slots for the experts that it owns, and its share of the first one's memory of the host."""
    counts = np.count_nonzero(mine.reshape(moe.num_layers, -1), axis=1)
    fewest = -(-least_host_slots(moe) // moe.num_layers)  # so that there are slots for a token's layer in any case
    sizes, behind = (each.only(np.maximum(counts, fewest).tolist()) for each in (plan.sizes, first.host_sizes))
    num_slots = sizes.slots_in(plan.cache_bytes)
    least = min(behind.least_slots + SPARE_HOST_SLOTS, len(behind.order))

    def part_of(slots: int) -> int:
        if slots == len(first.host_sizes.order):
            return len(behind.order)
        return max(least, behind.slots_in(first.host_sizes.num_bytes(slots) * int(counts.sum()) // moe.total_experts))

    host_slots, pinned_slots = part_of(first.host_slots), part_of(first.pinned_slots)
    if num_slots == len(sizes.order):
        host_slots = min(host_slots, max(least, behind.slots_in(ring_bytes(sizes))))
    pinned_slots = min(host_slots, pinned_slots)
    return replace(
        plan, sizes=sizes, num_slots=num_slots, host_sizes=behind, host_slots=host_slots, pinned_slots=pinned_slots
    )


class ExpertCard:
    """Slots of a card, filled with the experts that it owns: all of them, but where cards share them."""

    def __init__(self, context: BuildContext, part: Part, layouts: Sequence[ExpertLayout], stats: CacheStats) -> None:
        """Takes host memory, and opens the files. Raises StoreError. stats: where it counts, beside other cards."""
        self.gpu, self.plan, self.stage = part.gpu, part.plan, part.stage
        self._context, self._layouts, self._stats, moe = context, layouts, stats, context.manifest.moe
        self._shares = part.mine is not None
        self.mine: BoolArray = np.ones(moe.num_keys, np.bool_) if part.mine is None else part.mine
        self.num_owned = int(np.count_nonzero(self.mine)) if self._shares else moe.total_experts
        self.gpu.device.limit(self.plan.limit_bytes - CONTEXT_BYTES)
        self.program = DecodeProgram(self.gpu.device)
        self.host = Arena(self.plan.host_bytes)
        weights = context.weights
        self.reader = open_reader(
            weights.stored.shard_paths,
            weights.stored.shard_sizes,
            self.host,
            context.host.config,
            weights.expert_sums,
            context.on_wait,
            weights.others,
        )

    @property
    def fits(self) -> bool:
        """Whether the plan has a slot for every expert that the card owns."""
        return self.plan.num_slots == len(self.plan.sizes.order)

    def assemble(self, observers: list[Listener], others: Sequence[ExpertTier] = ()) -> None:
        """Opens the slots, whose policy and predictor join the observers. others: what `tier` tells of as well."""
        context, gpu, plan = self._context, self.gpu, self.plan
        self.arena = DeviceArena(gpu.device, plan.sizes.begins, gpu.segment_bytes)
        self.policy = policy_of(context, plan.num_slots)
        self.slots = self._open_slots(self.policy, others)
        self.tier = self.slots.tier
        if not self.fits:
            observers.append(self.policy)
        self.prefetcher = prefetcher_of(context, self.tier, self.link, observers, fits=self.fits)
        forms = context.weights.family.tensors.forms
        parts = [expert_parts_of(layout, forms[i % len(forms)]) for i, layout in enumerate(self._layouts)]
        self.compute = DeviceCompute(gpu.device, gpu.ops, self.program, parts)

    def _open_slots(self, policy: DevicePolicy, others: Sequence[ExpertTier]) -> DeviceSlots:
        """Opens device slots over host slots over the disk. Nothing keeps `self`: the tier outlives a closed model."""
        context, plan, gpu = self._context, self.plan, self.gpu
        stored, manifest, device = context.weights.stored, context.manifest, gpu.device
        shape, memory = manifest.moe, self.host.array()
        expert_bytes = plan.sizes.by_key(shape.num_experts)
        own_files = manifest.in_place is None
        errors = ReadErrors(stored.shard_paths if own_files else (), shape.num_experts, stored.name, stored.remedy)
        copies = Copies(gpu.copier, expert_bytes, device)
        cache = ExpertCache(shape, SlotRegion(None, 0, plan.num_slots, plan.sizes), policy, stats=self._stats)
        disk: Reader = self.reader
        if (placed := placed_reads(by_layer(manifest), self.reader)) is not None:
            conversion, num_threads = (
                ExpertConversion(by_layer(manifest), self._layouts),
                context.host.config.compute.threads,
            )
            slots = memory, expert_bytes
            disk = ConvertedReads(self.reader, placed, slots, conversion, num_threads or usable_cores())
        host = HostSlots(cache, SlotRegion(memory, 0, plan.host_slots, plan.host_sizes), disk, gpu.copier, errors)
        self.link = HostLink(host, copies, self.arena.addresses)
        idle = IdleWindow(lag_s=copies.lag_s)
        tier = FirstTier(cache, Loader(cache, self.link), errors, context.observation.profiler, idle)
        tier.others = others
        if self._shares:
            host.cache.only(self.mine)
            tier.only(self.mine)
        return DeviceSlots(tier, self.arena, copies, host)

    def take_slots(self) -> None:
        """Takes the slots, after all else that needs the device's memory. If the plan was wrong, there are fewer."""
        self.arena.take(self.plan.num_slots)
        left = self.arena.num_slots
        if left < self.plan.sizes.least_slots:
            raise torch.OutOfMemoryError(f"{left} experts fit")
        if left < self.plan.num_slots:
            self.tier.shrink(left)
            self._context.reporting.notify(
                f"the GPU's memory holds {left} experts, not {self.plan.num_slots} as planned"
            )

    def fill(self, progress: Callable[[int, int], None]) -> None:
        """Pins the host's slots, and reads every expert of the card where the device, or the host, has slots for all.

        The slots are pinned last: a system that refuses to pin more has then given what else a run needs.
        """
        report = self._context.reporting
        fits = self.arena.num_slots == len(self.plan.sizes.order)
        if self.slots.host.has_room_for_all and not fits:  # memory is pinned sooner when it is there
            self.slots.host.load_all(progress)
        wanted = self.plan.pinned_bytes
        pinned = self.slots.host.pin(wanted, lambda done: report.pin_progress(done, wanted))
        if pinned < self.plan.host_bytes:
            why = f"at most {PINNED_PERCENT} % of memory is" if pinned == wanted else "the system refuses more"
            report.notify(
                f"{size_text(pinned)} of the {size_text(self.plan.host_bytes)} of experts in memory are "
                f"pinned, {why}: the rest goes to the GPU through a small buffer, which is slower"
            )
        if fits and self._context.host.preload:
            self.tier.load_all(progress)

    def shrink(self, left: int) -> None:
        """Gives up all slots but the lowest `left`; nothing that was submitted uses the others after this."""
        self.program.reset()
        self.tier.shrink(left)
        self.slots.copies.order_compute()  # copies into what is given up may be under way
        self.gpu.device.synchronise()
        self.arena.shrink()
        self.gpu.device.release_unused()

    @property
    def used_bytes(self) -> int:
        """Of the card's memory, as planned but for slots that it does not have."""
        return replace(self.plan, num_slots=self.arena.num_slots).total_bytes

    def experts_text(self, moe: MoeShape) -> str:
        """What the card holds of the model's experts, and what lies behind it."""
        slots, owned, plan = self.arena.num_slots, self.num_owned, self.plan
        whose = f"{owned} of {moe.total_experts}" if self._shares else str(moe.total_experts)
        rest = ""
        if slots < owned:
            rest = f" · RAM: {moe.kind} {min(plan.host_slots, owned)}/{owned} ({size_text(plan.host_bytes)})"
            rest += " · rest on disk" if plan.host_slots < owned else ""
        return f"{moe.kind} {min(slots, owned)}/{whose} ({size_text(plan.sizes.num_bytes(slots))}){rest}"

    def describe(self, moe: MoeShape) -> str:
        """A further card's part of the line about memory."""
        return (
            f"{self.gpu.name}, VRAM {size_text(self.used_bytes)} of {size_text(self.plan.limit_bytes)}: "
            f"{self.layers_text()}{self.experts_text(moe)}"
        )

    def layers_text(self) -> str:
        """What the card holds of the dense layers, and for them."""
        plan, stage = self.plan, self.stage
        if not plan.dense_bytes:
            return ""
        which = "" if stage is None else f" of {stage.text()}"
        return f"dense {size_text(plan.dense_bytes)}{which}, KV {sequence_text(plan)}, "

    def close(self) -> bool:
        """Ends reads and copies, and gives back the slots; returns whether all reads have ended."""
        with suppress(RuntimeError):  # of a GPU that is lost
            self.gpu.device.synchronise()  # after an interrupt, kernels may still read pinned memory
        self.program.reset()
        ended = self.link.close() if hasattr(self, "link") else self.reader.close()
        if hasattr(self, "arena"):
            self.arena.release()
        return ended


class _Readers:
    """moeinf.runtime.io.reader_protocol.ReadFacts of several cards, which read the same files."""

    def __init__(self, readers: Sequence[ReadFacts]) -> None:
        self._readers = readers
        self.backend = readers[0].backend

    @property
    def notice(self) -> str:
        return next((reader.notice for reader in self._readers if reader.notice), "")

    def bytes_read(self) -> int:
        return sum(reader.bytes_read() for reader in self._readers)

    def busy_seconds(self) -> float:
        return max(reader.busy_seconds() for reader in self._readers)


def readers_of(cards: Sequence[ExpertCard]) -> ReadFacts:
    return cards[0].reader if len(cards) == 1 else _Readers([card.reader for card in cards])
