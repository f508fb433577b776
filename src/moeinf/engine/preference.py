"""Decides whether the CPU is expected to decode faster than a GPU that holds few of the experts."""

from __future__ import annotations

from typing import Final

from moeinf.config import gpu_option
from moeinf.engine.build_context import BuildContext
from moeinf.engine.memory.device_plan import plan_device_memory
from moeinf.engine.memory.plan import plan_memory
from moeinf.engine.speed.card_rates import card_rates
from moeinf.engine.speed.kept import decode_rates
from moeinf.engine.speed.speed import Step, decode_step, device_decode_step
from moeinf.engine.speed.weight_bytes import main_kinds
from moeinf.errors import OutOfMemoryError
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.text.quantities import size_text

MARGIN: Final = 0.8  # the CPU must need less than this share of the GPU's time: prompts are faster on the GPU


def reason_for_cpu(context: BuildContext, gpu: OpenGpu) -> str | None:
    """Returns why the CPU is preferred, in one line; None where the GPU is.

    The CPU is preferred only if the host has room for every expert: else both wait for the disk, and with the GPU there
    is more room in front of it. Nothing is measured if the GPU holds every expert. Raises OutOfMemoryError where the
    GPU has no room at all.
    """
    host, outline, moe = context.host, context.outline, context.manifest.moe
    on_gpu = outline.device_footprint
    plan = plan_device_memory(on_gpu, host.config, host.machine, gpu.free_bytes, gpu.total_bytes, gpu.has_display)
    total = moe.total_experts
    if plan.num_slots == total or gpu_option(host.config):
        return None
    try:
        on_cpu = plan_memory(outline.footprint, host.config, host.machine)
    except OutOfMemoryError:
        return None
    if on_cpu.num_slots < total:
        return None
    stored_bytes, made_bytes = (each.sizes.num_bytes(total) for each in (outline.footprint, on_gpu))
    if plan.host_slots < total and made_bytes > stored_bytes:
        return (
            f"memory holds all experts as they are stored ({size_text(stored_bytes)}), but not in the form in which "
            f"the GPU computes them ({size_text(made_bytes)}): it would wait for the disk; --device cuda takes the GPU "
            "all the same"
        )
    home = context.weights.stored.home
    rates, of_card = decode_rates(home, host.kernels, host.machine, main_kinds(outline)), card_rates(gpu.device)
    if rates is None or of_card is None:
        return None
    share = plan.num_slots / total
    return slower(decode_step(outline, on_cpu, rates, 0.0), device_decode_step(plan, moe, of_card), share, of_card.link)


def slower(on_cpu: Step, on_gpu: Step, share: float, link: float) -> str | None:
    """Returns a line for the user if a token is expected to take longer on the GPU than on the CPU.

    share: of the experts, those that the GPU holds. link: bytes a second at which the others come.
    """
    if on_cpu.seconds >= MARGIN * on_gpu.seconds:
        return None
    return (
        f"the GPU would hold {share:.0%} of the experts and wait for the others, which come at "
        f"{link / 1e9:.1f} GB/s: about {on_gpu.seconds * 1e3:.0f} ms a token are expected of the GPU, "
        f"{on_cpu.seconds * 1e3:.0f} of the CPU; --device cuda takes the GPU all the same"
    )
