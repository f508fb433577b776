"""Models opened on a GPU that is a device in host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import DevicePlan, plan_device_memory
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.gpu.ops import Ops
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.fake_device import FakeCopier, LateCopier


def emulated(pinned_bytes: int | None = None, copier: type[FakeCopier] = LateCopier) -> OpenGpu:
    device = EmulatedDevice()
    ops = recorded(device, Ops(TorchVectorOps(), TorchMatrixOps()))
    return OpenGpu("Emulated", device, ops, copier(pinned_bytes=pinned_bytes), 1 << 40, 1 << 40)


def in_fours(stored: StoredModel) -> OpenGpu:
    """With the memory of slots in segments of 4."""
    return replace(emulated(), segment_bytes=4 * stored.manifest.layout.stride_bytes)


def interpreted() -> OpenGpu:
    """With Triton's kernels in its interpreter, which carries out one program after the other: so there are few."""
    from moeinf.gpu.matrix_ops import TritonMatrixOps
    from moeinf.gpu.vector_ops import TritonVectorOps

    device = EmulatedDevice()
    matrices = TritonMatrixOps(linear_programs=3, expert_programs=3)
    ops = recorded(device, Ops(TritonVectorOps(attention_programs=10), matrices))
    return OpenGpu("Emulated", device, ops, LateCopier(), 1 << 40, 1 << 40)


def opened(
    stored: StoredModel,
    gpu: OpenGpu | None = None,
    host: int | None = None,
    reporting: Reporting | None = None,
    pinned: int = 0,
    **options: Any,
) -> Model:
    """host: the largest experts that the machine's memory holds; None for what the plan gives, all or a ring. pinned:
    so many slots of them, 0 for all."""

    def plan(*args: Any) -> DevicePlan:
        made = plan_device_memory(*args)
        if host is None:
            return made
        sizes = args[0].sizes.worth_in(host * made.slot_bytes)
        slots = sizes.slots_in(host * made.slot_bytes)
        return replace(made, host_sizes=sizes, host_slots=slots, pinned_slots=pinned or slots)

    config = RuntimeConfig.of(**{"prefill_chunk": 16, "threads": 1} | options)
    with patch("moeinf.engine.cards.card.plan_device_memory", plan):
        return Model(stored, config, reporting, on=Machine(1 << 40, "test", 2), gpu=gpu or emulated())
