"""Estimates from measured rates whether the CPU decodes faster than a GPU that holds few of the experts."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import torch

from moeinf._native import Kernels, memory_read_rate
from moeinf.config import gpu_option
from moeinf.engine.build_context import BuildContext
from moeinf.engine.memory.footprint import Footprint
from moeinf.engine.memory.plan import DevicePlan, plan_device_memory, plan_memory
from moeinf.errors import OutOfMemoryError
from moeinf.gpu.cuda import explain, is_out_of_memory
from moeinf.gpu.device import Device
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.text.quantities import size_text

_SPAN_BYTES: Final = 128 << 20  # read or copied at once; more than caches hold
_LINK_BYTES: Final = 32 << 20
_ROUNDS: Final = 3
CPU_SHARE: Final = 0.7  # share of its memory's rate that decoding on a CPU reaches
DEVICE_SHARE: Final = 0.6  # the same share on a GPU
LAYER_S: Final = 50e-6  # time that a GPU spends on launches in each layer
MISSED: Final = 0.75  # share of a token's experts that misses, where next to none are on the device
MARGIN: Final = 0.8  # the CPU must need less than this share of the GPU's time: prompts are faster on the GPU


class Rates(NamedTuple):
    """Rates in bytes a second; 0 where too little memory is free to measure them."""

    memory: float  # of the host, read by all threads
    device: float  # of the GPU's memory, read
    link: float  # from pinned memory to the GPU


def reason_for_cpu(context: BuildContext, gpu: OpenGpu) -> str | None:
    """Returns why the CPU is preferred, in one line; None where the GPU is.

    The CPU is preferred only if the host has room for every expert: else both wait for the disk, and with the GPU there
    is more room in front of it. Nothing is measured if the GPU holds every expert. Raises OutOfMemoryError where the
    GPU has no room at all.
    """
    host, footprint, on_gpu = context.host, context.footprint, context.device_footprint
    plan = plan_device_memory(on_gpu, host.config, host.machine, gpu.free_bytes, gpu.total_bytes, gpu.has_display)
    total = footprint.moe.total_experts
    if plan.num_slots == total or gpu_option(host.config):
        return None
    try:
        on_cpu = plan_memory(footprint, host.config, host.machine)
    except OutOfMemoryError:
        return None
    if on_cpu.num_slots < total:
        return None
    stored_bytes, made_bytes = (each.sizes.num_bytes(total) for each in (footprint, on_gpu))
    if plan.host_slots < total and made_bytes > stored_bytes:
        return (
            f"memory holds all experts as they are stored ({size_text(stored_bytes)}), but not in the form in which "
            f"the GPU computes them ({size_text(made_bytes)}): it would wait for the disk; --device cuda takes the GPU "
            "all the same"
        )
    return slower(footprint, plan, measured(gpu.device, host.kernels))


def slower(footprint: Footprint, plan: DevicePlan, rates: Rates) -> str | None:
    """Returns a line for the user if a token is expected to take longer on the GPU than on the CPU.

    footprint: the sizes on the CPU; those on the GPU are the plan's.
    """
    if not all(rates):
        return None
    moe = footprint.moe
    used = moe.num_layers * moe.top_k  # experts of a token
    share = plan.num_slots / moe.total_experts
    # As measured for next-use at 10 to 80 %: policies.md.
    missed = MISSED * (1 - share) ** 2 * used * plan.sizes.mean_bytes
    on_cpu = (footprint.dense_bytes + used * footprint.sizes.mean_bytes) / (CPU_SHARE * rates.memory)
    on_device = (plan.dense_bytes + used * plan.sizes.mean_bytes) / (DEVICE_SHARE * rates.device)
    on_gpu = on_device + missed / rates.link + moe.num_layers * LAYER_S
    if on_cpu >= MARGIN * on_gpu:
        return None
    return (
        f"the GPU would hold {share:.0%} of the experts and wait for the others, which come at "
        f"{rates.link / 1e9:.1f} GB/s, the CPU reads its memory at {rates.memory / 1e9:.1f} GB/s: about "
        f"{on_gpu * 1e3:.0f} ms a token are expected of the GPU, {on_cpu * 1e3:.0f} of the CPU; --device cuda "
        "takes the GPU all the same"
    )


def measured(device: Device, kernels: Kernels) -> Rates:
    """Measures the rates, in a tenth of a second."""
    memory = memory_read_rate(kernels, _SPAN_BYTES, _ROUNDS)
    try:
        with device.computing():
            host = device.pinned((_LINK_BYTES,), torch.uint8)
            target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device.kind)
            link = _rate(device, target, host)
            source = torch.zeros(_SPAN_BYTES, dtype=torch.uint8, device=device.kind)
            return Rates(memory, 2 * _rate(device, torch.empty_like(source), source), link)  # read, and written
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise explain(error) or error from error
        return Rates(memory, 0.0, 0.0)


def _rate(device: Device, target: torch.Tensor, source: torch.Tensor) -> float:
    """Returns the best rate of a few copies."""
    seconds = []
    for _ in range(_ROUNDS + 1):  # the first takes longer
        device.synchronise()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        device.synchronise()
        seconds.append(time.perf_counter() - started)
    return source.nbytes / min(seconds)
