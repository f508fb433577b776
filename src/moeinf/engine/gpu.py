"""Runs a stored model on a GPU, with expert slots in its memory, behind them slots in host memory, and the disk."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

from moeinf._native import Arena, ExpertKernel
from moeinf.engine.build_context import BuildContext, policy_of, prefetcher_of
from moeinf.engine.footprint import expert_parts
from moeinf.engine.memory_plan import (
    CONTEXT_BYTES,
    PINNED_PERCENT,
    DevicePlan,
    plan_device_memory,
    prefixes_text,
    sequence_text,
)
from moeinf.engine.placed.device_form import ExpertConversion, conversion_notice, device_layouts, for_device
from moeinf.engine.placed.experts import placed_reads
from moeinf.errors import OutOfMemoryError
from moeinf.gpu.arena import DeviceArena
from moeinf.gpu.cuda import explain, is_out_of_memory
from moeinf.gpu.matrix import expert_parts_of
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.gpu.program import DecodeProgram
from moeinf.hardware import usable_cores
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.encoder_decoder import EncoderDecoder, SourceCache
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.idle import IdleWindow
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.gpu.converted_reads import ConvertedReads
from moeinf.runtime.gpu.copies import Copies
from moeinf.runtime.gpu.cpu_experts import CpuExperts
from moeinf.runtime.gpu.cpu_share import CpuShare
from moeinf.runtime.gpu.device_experts import DeviceExperts
from moeinf.runtime.gpu.device_slots import DeviceCompute, DeviceSlots
from moeinf.runtime.gpu.device_table import DeviceTable
from moeinf.runtime.gpu.host_link import HostLink
from moeinf.runtime.gpu.host_slots import HostSlots
from moeinf.runtime.io.protocol import Reader
from moeinf.runtime.io.reader import open_reader
from moeinf.runtime.policy.protocol import DevicePolicy
from moeinf.text.quantities import size_text
from moeinf.types import Float32Array

T = TypeVar("T")


class GpuRunner:
    """moeinf.engine.opening.ModelRunner on a GPU."""

    def __init__(self, context: BuildContext, gpu: OpenGpu) -> None:
        """Takes the dense weights to the device, then fills host or device memory where that holds every expert.

        Raises OutOfMemoryError before anything is read, StoreError for a damaged store, DeviceError.
        """
        self._context, self._gpu, self._notify = context, gpu, context.reporting.notify
        host, weights, footprint = context.host, context.weights, context.device_footprint
        self.plan: DevicePlan = plan_device_memory(
            footprint, host.config, host.machine, gpu.free_bytes, gpu.total_bytes, gpu.has_display
        )
        if notice := conversion_notice(footprint, weights.manifest, weights.dense):
            self._notify(notice)
        self._layouts = device_layouts(weights.manifest)
        gpu.device.limit(self.plan.limit_bytes - CONTEXT_BYTES)
        self._program = DecodeProgram(gpu.device)
        self._host = Arena(self.plan.host_bytes)
        self.reader = open_reader(
            weights.stored.shard_paths,
            weights.stored.shard_sizes,
            self._host,
            host.config,
            weights.expert_sums,
            context.on_wait,
        )
        try:
            with gpu.device.computing():
                self._assemble(context, gpu)
        except BaseException as error:
            self.close()
            if is_out_of_memory(error):
                raise OutOfMemoryError(
                    "the GPU's memory ran out while the model was loaded: end what else uses it "
                    "(nvidia-smi lists that), or lower --num-ctx or --vram"
                ) from error
            raise self._named(error) from error
        if self.reader.notice:
            self._notify(self.reader.notice)

    def _assemble(self, context: BuildContext, gpu: OpenGpu) -> None:
        weights, observation, plan = context.weights, context.observation, self.plan
        manifest, config, profiler = weights.manifest, context.host.config, observation.profiler
        shape, layouts, info = manifest.moe, self._layouts, manifest.info
        self._arena = DeviceArena(gpu.device, plan.slot_bytes, gpu.segment_bytes)
        policy = policy_of(context, plan.num_slots)
        self._slots = slots = self._open_slots(context, gpu, policy)
        self.tier = slots.tier
        fits = plan.num_slots == shape.total_experts
        self.observers = [*observation.observers] if fits else [*observation.observers, policy]
        prefetcher = prefetcher_of(context, self.tier, self._link, self.observers, plan.slot_bytes, fits=fits)
        form = weights.family.tensors.form
        parts = [expert_parts_of(layout, form) for layout in layouts]
        compute = DeviceCompute(gpu.device, gpu.ops, self._program, parts)
        self._table = DeviceTable(
            compute,
            slots,
            policy,
            self.observers,
            allowed=not config.cpu_experts,
            encoder_layers=context.encoder_layers,
            witness=observation.witness,
        )
        cpu = None
        if config.cpu_experts and not fits:
            on_cpu = [expert_parts(layout) for layout in layouts]
            kernel = ExpertKernel(context.host.kernels, self._host.array(), on_cpu, form)
            _, _, width, _ = on_cpu[0]["up"]  # what experts are given: of the model's width, or narrower
            cpu = CpuExperts(gpu.device, slots.host, gpu.copier, kernel, CpuShare(self._notify), width)
        self._experts = experts = DeviceExperts(
            compute, slots, self.observers, prefetcher, self._table, cpu, weights.stored.name, observation.witness
        )
        with weights.dense.streamed(config, self._progress(0), context.on_wait) as tensors:
            on_device = DeviceWeights(
                gpu.device, gpu.ops, for_device(tensors, manifest.scales.dense), weights.dense.lookups()
            )
            layers = DeviceLayers(on_device, info.dtype, plan.context, self._program)
            self.network = weights.family.build(layers, experts, profiler)
        self.cache = self.network.new_cache(plan.context, context.num_beams)
        layers.staging.take(
            plan.context if weights.family.workspace.source else plan.prefill_chunk,
            info.hidden_size,
            context.num_beams * info.vocab_size,
        )
        self._take_slots()
        self._fill()

    def _open_slots(self, context: BuildContext, gpu: OpenGpu, policy: DevicePolicy) -> DeviceSlots:
        """Opens device slots over host slots over the disk. Nothing keeps `self`: the tier outlives a closed model."""
        stored, manifest, plan, device = context.weights.stored, context.manifest, self.plan, gpu.device
        shape, stride_bytes, memory = manifest.moe, plan.slot_bytes, self._host.array()
        own_files = manifest.in_place is None
        errors = ReadErrors(stored.shard_paths if own_files else (), shape.num_experts, stored.name, stored.remedy)
        copies = Copies(gpu.copier, stride_bytes, shape.num_keys, device)
        cache = ExpertCache(shape, stride_bytes, SlotRegion(None, 0, plan.num_slots), policy)
        disk: Reader = self.reader
        if (placed := placed_reads(manifest, self.reader)) is not None:
            conversion, num_threads = ExpertConversion(manifest, self._layouts), context.host.config.threads
            slots = memory, stride_bytes
            disk = ConvertedReads(self.reader, placed, slots, conversion, num_threads or usable_cores())
        host = HostSlots(cache, SlotRegion(memory, 0, plan.host_slots), disk, gpu.copier, errors)
        self._link = HostLink(host, copies, self._arena.addresses)
        idle = IdleWindow(lag_s=copies.lag_s)
        tier = ExpertTier(cache, Loader(cache, self._link), errors, context.observation.profiler, idle)
        return DeviceSlots(tier, self._arena, copies, host)

    def _take_slots(self) -> None:
        """Takes the slots, after all else that needs the device's memory. If the plan was wrong, there are fewer."""
        self._arena.take(self.plan.num_slots)
        left = self._arena.num_slots
        if left < self._context.manifest.moe.top_k:
            raise torch.OutOfMemoryError(f"{left} experts fit")
        if left < self.plan.num_slots:
            self.tier.shrink(left)
            self._notify(f"the GPU's memory holds {left} experts, not {self.plan.num_slots} as planned")

    def _fill(self) -> None:
        """Pins the host's slots, and reads every expert where the device, or the host, has a slot for each.

        The slots are pinned last: a system that refuses to pin more has then given what else a run needs.
        """
        report, total = self._context.reporting, self._context.manifest.moe.total_experts
        fits = self._arena.num_slots == total
        progress = self._progress(self.plan.dense_bytes)
        if self.plan.host_slots == total and not fits:  # memory is pinned sooner when it is there
            self._slots.host.load_all(progress)
        wanted = self.plan.pinned_bytes
        pinned = self._slots.host.pin(wanted, lambda done: report.pin_progress(done, wanted))
        if pinned < self.plan.host_bytes:
            why = f"at most {PINNED_PERCENT} % of memory is" if pinned == wanted else "the system refuses more"
            self._notify(
                f"{size_text(pinned)} of the {size_text(self.plan.host_bytes)} of experts in memory are "
                f"pinned, {why}: the rest goes to the GPU through a small buffer, which is slower"
            )
        if fits and self._context.host.preload:
            self.tier.load_all(progress)

    def forward(
        self, token_ids: Sequence[int], between_layers: Callable[[], None] = lambda: None, *, of_tokens: int = 0
    ) -> Float32Array:
        """Logits of the last token, or of each beam's; of_tokens: see Decoder.forward.

        Raises DeviceError for a GPU that is lost, OutOfMemoryError at last.
        """
        return self._in_memory(lambda: self._forward(token_ids, between_layers, of_tokens))

    def encode(self, token_ids: Sequence[int], between_layers: Callable[[], None]) -> None:
        """See EncoderDecoder.encode. Raises as `forward`."""

        def encode() -> None:
            self._choose_slots(by_device=False)
            assert isinstance(self.network, EncoderDecoder), "only an encoder-decoder encodes"
            self.network.encode(token_ids, self.cache, between_layers)
            self._gpu.device.synchronise()

        self._in_memory(encode)

    def keep_beams(self, beams: Sequence[int]) -> None:
        assert isinstance(self.cache, SourceCache), "only an encoder-decoder decodes beams"
        self.cache.keep(beams)

    def _in_memory(self, step: Callable[[], T]) -> T:
        """Returns what a step gives. Where memory runs out, the step is repeated with fewer slots."""
        with self._gpu.device.computing():
            while True:
                try:
                    with self._experts.step():
                        return step()
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise self._named(error) from error
                    self._shrink(error)

    def _forward(self, token_ids: Sequence[int], between_layers: Callable[[], None], of_tokens: int) -> Float32Array:
        decode = len(token_ids) == self.cache.beams
        self._choose_slots(by_device=len(token_ids) == 1)
        if decode:
            self._program.keep_for(self._table.mode)
            between_layers()  # the layers of a token may run without the host
        logits = self.network.forward(token_ids, self.cache, None if decode else between_layers, of_tokens=of_tokens)
        self._table.after_token()
        return logits

    def _choose_slots(self, *, by_device: bool) -> None:
        """Hands the slots to the device where that is possible, or back to the host."""
        table = self._table
        if table.active != (by_device and table.possible):
            if table.active:
                table.leave()
            else:
                table.enter()

    def _shrink(self, error: BaseException) -> None:
        """Gives up some slots for another process or a longer prompt. Raises OutOfMemoryError when none are left."""
        left = self._arena.smaller()
        if left <= self._context.manifest.moe.top_k:
            raise OutOfMemoryError(
                f"the GPU's memory does not suffice, even with {self._arena.num_slots} experts in it: end what else "
                "uses it (nvidia-smi lists that), or lower --num-ctx or --prefill-chunk"
            ) from error
        traceback.clear_frames(error.__traceback__)  # they hold the activations of the step that failed
        self._program.reset()
        self._table.leave()
        before = self._arena.num_slots
        self.tier.shrink(left)
        self._slots.copies.order_compute()  # copies into what is given up may be under way
        self._gpu.device.synchronise()
        self._arena.shrink()
        self._table.forget()
        self._gpu.device.release_unused()
        self._notify(f"the GPU's memory ran out: {before - left} of {before} experts left it, the run goes on")

    def _progress(self, before: int) -> Callable[[int, int], None]:
        """Returns the progress of a step before which `before` bytes were loaded."""
        fits = self._context.manifest.moe.total_experts in (self.plan.num_slots, self.plan.host_slots)
        experts = self._context.manifest.moe.total_experts * self.plan.slot_bytes if fits else 0
        return lambda done, _: self._context.reporting.progress(before + done, self.plan.dense_bytes + experts)

    def _named(self, error: BaseException) -> BaseException:
        return explain(error) or error

    @property
    def arithmetic(self) -> str:
        return f"gpu {self._gpu.name}, {self.plan.prefill_chunk} tokens at once"

    def describe(self, total_experts: int) -> str:
        plan, slots = self.plan, self._arena.num_slots
        used = plan.total_bytes - (plan.num_slots - slots) * plan.slot_bytes
        rest = ""
        if slots < total_experts:
            rest = f" · RAM: experts {plan.host_slots}/{total_experts} ({size_text(plan.host_bytes)})"
            rest += " · rest on disk" if plan.host_slots < total_experts else ""
        return (
            f"{self._gpu.name}, VRAM {size_text(used)} of {size_text(plan.limit_bytes)}: "
            f"dense {size_text(plan.dense_bytes)}, KV {sequence_text(plan)}, "
            f"experts {slots}/{total_experts} ({size_text(slots * plan.slot_bytes)}){rest}{prefixes_text(plan)}"
        )

    def peak_device_bytes(self) -> int:
        return self._gpu.device.peak_bytes()

    def close(self) -> bool:
        """Ends reads and copies, and gives back all of the device's memory, whoever still holds this object."""
        with suppress(RuntimeError):  # of a GPU that is lost
            self._gpu.device.synchronise()  # after an interrupt, kernels may still read pinned memory
        self._program.reset()
        ended = self._link.close() if hasattr(self, "_link") else self.reader.close()
        if hasattr(self, "_arena"):
            self._arena.release()
        for name in ("network", "cache", "_table", "_experts"):
            self.__dict__.pop(name, None)
        self._gpu.close()
        return ended
