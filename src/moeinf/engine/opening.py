"""Puts a model together: reads what is stored, and chooses the device that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig, gpu_option
from moeinf.engine.build_context import BuildContext, Notify, Weights
from moeinf.engine.memory_plan import MemoryPlan
from moeinf.engine.placed.dense import open_dense
from moeinf.engine.placed.experts import expert_sums
from moeinf.errors import DeviceError, OutOfMemoryError, StoreError, UsageError
from moeinf.gpu.cuda import Gpu, find_cuda, without_advice
from moeinf.hardware import Machine
from moeinf.models.family import family_of
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.models.layers.kv_cache import Cache
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import Observer
from moeinf.runtime.io.protocol import ReadFacts
from moeinf.sampling.beam_search import EncoderDecoderModel
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.library import StoredModel
from moeinf.store.sums.checksums import sums_of
from moeinf.types import ModelInfo, TensorPlan

if TYPE_CHECKING:  # loads torch, which a run on the CPU does without
    from moeinf.gpu.open_gpu import OpenGpu


class ModelRunner(EncoderDecoderModel, Protocol):
    """A network on a device, with its experts and the cache of one sequence: CpuRunner (cpu.py), GpuRunner (gpu.py).

    Only encoder-decoder models have a use for `encode` and `keep_beams`.
    """

    tier: ExpertTier  # of the device that computes
    observers: list[Observer]
    network: Decoder | EncoderDecoder
    cache: Cache

    @property
    def plan(self) -> MemoryPlan: ...

    @property
    def reader(self) -> ReadFacts: ...

    @property
    def stats(self) -> CacheStats:
        """What the caches of experts have counted, those of other ranks too, as a copy. From any thread."""
        ...

    @property
    def arithmetic(self) -> str:
        """What its rounding depends on: the device, and how its kernels compute."""
        ...

    def describe(self, total_experts: int) -> str:
        """Says where its memory went."""
        ...

    def peak_device_bytes(self) -> int:
        """The most memory that was ever taken of a GPU; 0 on the CPU."""
        ...

    def close(self) -> bool:
        """Gives back what it holds; returns whether all reads have ended."""
        ...


def put_together(context: BuildContext, gpu: OpenGpu | None, look: Callable[[], Machine]) -> ModelRunner:
    """Returns a runner on `gpu` if one is given, else on the device that the configuration names.

    look() tells the machine's memory as it is now. Raises as Model does.
    """
    config = context.host.config
    if config.worker_key_file and not config.workers:
        raise UsageError("--worker-key-file is for --workers HOST:PORT; give some, or leave it out")
    if gpu is not None:
        from moeinf.engine.gpu import GpuRunner

        _refuse_states(config)
        return GpuRunner(context, gpu, _other_cards(context))
    found = find_cuda(config.devices[0], context.reporting.notify)
    if found is not None:
        runner = _on_gpu(context, found, look)
        if runner is not None:
            return runner
        context = context.on(look())
    from moeinf.engine.cpu import CpuRunner

    return CpuRunner(context)


def _on_gpu(context: BuildContext, found: Gpu, look: Callable[[], Machine]) -> ModelRunner | None:
    """Returns a runner on the card that was found; None, after one notice, where "auto" leaves the work to the CPU."""
    from moeinf.engine.gpu import GpuRunner
    from moeinf.engine.preference import reason_for_cpu
    from moeinf.gpu.open_gpu import open_gpu

    config = context.host.config
    auto, gpu = config.device == "auto" and not gpu_option(config), None
    if auto and config.trace_states:
        context.reporting.notify("running on the CPU: --trace-states records there alone")
        return None
    _refuse_states(config)
    try:
        gpu = open_gpu(found)
        context = context.on(look())  # torch and the driver's context have taken their part by now
        reason = reason_for_cpu(context, gpu) if auto else None
        if reason is None:
            return GpuRunner(context, gpu, _other_cards(context))
    except (DeviceError, OutOfMemoryError) as error:
        if not auto:
            raise
        reason = without_advice(error)
    if gpu is not None:
        gpu.close()
    context.reporting.notify(f"running on the CPU: {reason}")
    return None


def _other_cards(context: BuildContext) -> list[OpenGpu]:
    """Opens the cards that are named behind the first. Raises DeviceError."""
    from moeinf.gpu.open_gpu import open_gpu

    opened: list[OpenGpu] = []
    try:
        for name in context.host.config.devices[1:]:
            found = find_cuda(name, context.reporting.notify)
            assert found is not None, "only auto and cpu mean none"
            opened.append(open_gpu(found))
    except BaseException:
        for card in opened:
            card.close()
        raise
    return opened


def _refuse_states(config: RuntimeConfig) -> None:
    if config.trace_states:
        raise UsageError("--trace-states records on the CPU alone; give --device cpu, or leave it out")


def open_kernels(num_threads: int, isa: str) -> Kernels:
    """Opens the kernels. Raises UsageError for an instruction set that is unknown or that this CPU lacks."""
    try:
        return Kernels(num_threads, isa)
    except ValueError as error:
        raise UsageError(f"MOEINF_ISA: {error}") from error


def read_weights(stored: StoredModel, config: RuntimeConfig, notify: Notify) -> Weights:
    """Reads config.json and the header of the dense weights, which the manifest and the family are held against.

    Raises StoreError where they disagree, UsageError where --verify-reads asks for checksums that there are not.
    """
    config_json = _config_json(stored)
    family = family_of(config_json)
    plan = family.tensors
    _compare(stored, family.info(stored.manifest.info.dtype), plan)
    sums, notice = sums_of(stored)
    if notice and config.verify_reads:
        raise UsageError(f"--verify-reads: {notice}")
    if notice:
        notify(notice)
    strangers = stored.manifest.scales.dense.keys() - {*plan.matrices, *(plan.head or ())[:1]}
    if strangers:
        raise StoreError(
            f"{stored.path / 'manifest.json'} scales {min(strangers)}, which is no matrix; {stored.remedy}"
        )
    dense = open_dense(stored, plan, sums, always=config.verify_reads)
    return Weights(stored, family, config_json, dense, expert_sums(stored.manifest, sums), sums)


def _config_json(stored: StoredModel) -> dict[str, Any]:
    path = stored.path / "config.json"
    with errors_named(path):
        return parse_json_object(read_small(path), str(path), StoreError)


def _compare(stored: StoredModel, info: ModelInfo, plan: TensorPlan) -> None:
    """Raises StoreError where the manifest speaks of another model."""
    manifest = stored.manifest
    pairs = [
        (name, getattr(info, name), getattr(manifest.info, name))
        for name in ("hidden_size", "num_layers", "vocab_size")
    ]
    pairs += [
        (f"experts.{name}", getattr(plan.moe, name), getattr(manifest.moe, name))
        for name in ("num_layers", "num_experts", "top_k", "counts")
    ]
    for name, found, wanted in pairs:
        if found != wanted:
            path = stored.path / "config.json"
            raise StoreError(f"{path}: {name} is {found}, in the manifest {wanted}; {stored.remedy}")
