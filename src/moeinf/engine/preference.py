"""Whether a model decodes faster on the CPU than on a GPU that holds few of its experts, by measured rates."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import torch

from moeinf._native import Kernels, memory_read_rate
from moeinf.config import gpu_option
from moeinf.engine.build_context import BuildContext
from moeinf.engine.gpu import OpenGpu
from moeinf.engine.memory_plan import Demands, DevicePlan, plan_device_memory, plan_memory
from moeinf.errors import OutOfMemoryError
from moeinf.gpu.cuda import explain, is_out_of_memory
from moeinf.gpu.device import Device

_SPAN_BYTES: Final = 128 << 20  # measured at once; more than caches hold
_LINK_BYTES: Final = 32 << 20
_ROUNDS: Final = 3
CPU_SHARE: Final = 0.7  # of the rate of its memory that decoding reaches
DEVICE_SHARE: Final = 0.6  # the same of a GPU
LAYER_S: Final = 50e-6  # of a GPU's time in each layer that goes to launches
MISSED: Final = 0.75  # of a token's experts, where next to none are on the device
MARGIN: Final = 0.8  # what the CPU's time has to be of the GPU's: the GPU is ahead in prompts, and this is an estimate


class Rates(NamedTuple):
    """Bytes a second; 0 where too little memory is free to tell."""

    memory: float  # of the host, read by all threads
    device: float  # of the GPU's memory, read
    link: float  # from pinned memory to the GPU


def reason_for_cpu(context: BuildContext, gpu: OpenGpu) -> str | None:
    """Why the CPU is to be preferred, in one line; None where the GPU is.

    Only where the host has room for every expert: else both wait for the disk, and the GPU has more room before it.
    Nothing is measured where the GPU holds every expert. Raises OutOfMemoryError where the GPU has no room at all.
    """
    host, demands = context.host, context.demands
    plan = plan_device_memory(demands, host.config, host.machine, gpu.free_bytes, gpu.total_bytes, gpu.has_display)
    total = demands.moe.total_experts
    if plan.num_slots == total or gpu_option(host.config):
        return None
    try:
        on_cpu = plan_memory(demands, host.config, host.machine)
    except OutOfMemoryError:
        return None
    return slower(demands, plan, measured(gpu.device, host.kernels)) if on_cpu.num_slots == total else None


def slower(demands: Demands, plan: DevicePlan, rates: Rates) -> str | None:
    """What is said where a token is expected to take longer on the GPU than on the CPU."""
    if not all(rates):
        return None
    moe = demands.moe
    experts = moe.num_layers * moe.top_k * demands.layout.stride_bytes
    token = demands.dense_bytes + experts
    share = plan.num_slots / moe.total_experts
    missed = MISSED * (1 - share) ** 2 * experts  # as measured for next-use at 10 to 80 %: docs/policies.md
    on_cpu = token / (CPU_SHARE * rates.memory)
    on_gpu = token / (DEVICE_SHARE * rates.device) + missed / rates.link + moe.num_layers * LAYER_S
    if on_cpu >= MARGIN * on_gpu:
        return None
    return (
        f"the GPU would hold {share:.0%} of the experts and wait for the others, which come at "
        f"{rates.link / 1e9:.1f} GB/s, the CPU reads its memory at {rates.memory / 1e9:.1f} GB/s: about "
        f"{on_gpu * 1e3:.0f} ms a token are expected of the GPU, {on_cpu * 1e3:.0f} of the CPU; --device cuda "
        "takes the GPU all the same"
    )


def measured(device: Device, kernels: Kernels) -> Rates:
    """In a tenth of a second."""
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
    """Best rate of a few copies."""
    seconds = []
    for _ in range(_ROUNDS + 1):  # the first takes longer
        device.synchronise()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        device.synchronise()
        seconds.append(time.perf_counter() - started)
    return source.nbytes / min(seconds)
