"""Puts a model together: of what family it is, on which device it runs, and with which kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from moeinf._native import Kernels
from moeinf.config import gpu_option
from moeinf.engine.memory_plan import MemoryPlan
from moeinf.engine.parts import ModelParts
from moeinf.errors import DeviceError, OutOfMemoryError, StoreError, UsageError
from moeinf.gpu.cuda import Gpu, find_cuda, without_advice
from moeinf.hardware import Machine
from moeinf.models import Architecture, architecture
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import Observer
from moeinf.sampling.beam_search import SourceModel
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.library import StoredModel
from moeinf.types import Reader, TensorPlan

if TYPE_CHECKING:  # loads torch, which a run on the CPU does without
    from moeinf.engine.gpu import OpenGpu


class Run(SourceModel, Protocol):
    """A model put together on the CPU (on_cpu.py) or on a GPU (on_gpu.py); `encode` is of encoder-decoder models."""

    tier: ExpertTier  # of the device that computes
    reader: Reader  # of the disk
    observers: list[Observer]
    cache: Any
    model: Any  # models.decoder.Decoder or models.seq2seq.EncoderDecoder

    @property
    def plan(self) -> MemoryPlan: ...

    def describe(self, total_experts: int) -> str:
        """Where its memory went."""
        ...

    def peak_device_bytes(self) -> int:
        """Most memory that was ever taken of a GPU; 0 on the CPU."""
        ...

    def close(self) -> bool: ...  # whether all reads have ended


def put_together(parts: ModelParts, gpu: OpenGpu | None, look: Callable[[], Machine]) -> Run:
    """Runs the model on `gpu` if one is given, else on what the configuration names.

    look() tells the machine's memory as it is now.

    Raises as Model does.
    """
    if gpu is not None:
        from moeinf.engine.gpu import GpuRun

        return GpuRun(parts, gpu)
    found = find_cuda(parts.config.device, parts.notices.append)
    if found is not None and (run := _on_gpu(parts, found, look)) is not None:
        return run
    from moeinf.engine.cpu import CpuRun

    return CpuRun(parts)


def _on_gpu(parts: ModelParts, found: Gpu, look: Callable[[], Machine]) -> Run | None:
    """The run on the card that was found; None, after one notice, where "auto" leaves the work to the CPU."""
    from moeinf.engine.gpu import GpuRun, open_gpu
    from moeinf.engine.preference import reason_for_cpu

    auto, gpu = parts.config.device == "auto" and not gpu_option(parts.config), None
    try:
        gpu = open_gpu(found)
        parts.machine = look()  # torch and the driver's context have taken their part by now
        reason = reason_for_cpu(parts, gpu) if auto else None
        if reason is None:
            return GpuRun(parts, gpu)
    except (DeviceError, OutOfMemoryError) as error:
        if not auto:
            raise
        reason = without_advice(error)
    if gpu is not None:
        gpu.close()
    parts.machine = look()
    parts.notices.append(f"running on the CPU: {reason}")
    return None


def open_kernels(num_threads: int, isa: str) -> Kernels:
    """Raises UsageError for an instruction set that is unknown or that this CPU lacks."""
    try:
        return Kernels(num_threads, isa)
    except ValueError as error:
        raise UsageError(f"MOEINF_ISA: {error}") from error


def read_config(stored: StoredModel) -> tuple[dict[str, Any], Architecture, TensorPlan]:
    """config.json, and what its family makes of it. Raises StoreError where the manifest speaks of another model."""
    path, manifest = stored.path / "config.json", stored.manifest
    with errors_named(path):
        config_json = parse_json_object(read_small(path), str(path), StoreError)
    family = architecture(config_json)
    plan = family.tensor_plan(config_json)
    info = family.model_info(config_json, manifest.info.dtype)
    pairs = [
        (name, getattr(info, name), getattr(manifest.info, name))
        for name in ("hidden_size", "num_layers", "vocab_size")
    ]
    pairs += [
        (f"experts.{name}", getattr(plan.moe, name), getattr(manifest.moe, name))
        for name in ("num_layers", "num_experts", "top_k")
    ]
    for name, found, wanted in pairs:
        if found != wanted:
            raise StoreError(f"{path}: {name} is {found}, in the manifest {wanted}; {stored.remedy}")
    return config_json, family, plan
