"""Chooses the device that runs a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moeinf.config import gpu_option
from moeinf.engine.build_context import BuildContext
from moeinf.engine.runner import ModelRunner
from moeinf.errors import DeviceError, OutOfMemoryError, UsageError
from moeinf.gpu.cuda import Gpu, find_cuda, without_advice
from moeinf.hardware import Machine

if TYPE_CHECKING:  # loads torch, which a run on the CPU does without
    from moeinf.gpu.open_gpu import OpenGpu


def runner_on_a_device(context: BuildContext, gpu: OpenGpu | None, look: Callable[[], Machine]) -> ModelRunner:
    """Returns a runner on `gpu` if one is given, else on the device that the configuration names.

    look() tells the machine's memory as it is now. Raises as open_model does.
    """
    config = context.host.config
    if config.compute.worker_key_file and not config.compute.workers:
        raise UsageError("--worker-key-file is for --workers HOST:PORT; give some, or leave it out")
    if gpu is not None:
        from moeinf.engine.gpu import GpuRunner

        return GpuRunner(context, gpu, _other_cards(context))
    found = find_cuda(config.compute.devices[0], context.reporting.notify)
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
    auto, gpu = config.compute.device == "auto" and not gpu_option(config), None
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
        for name in context.host.config.compute.devices[1:]:
            found = find_cuda(name, context.reporting.notify)
            assert found is not None, "only auto and cpu mean none"
            opened.append(open_gpu(found))
    except BaseException:
        for card in opened:
            card.close()
        raise
    return opened
