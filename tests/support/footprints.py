"""What models demand of memory, and machines that have so much of it."""

from __future__ import annotations

import dataclasses

from moeinf.engine.memory.footprint import Footprint
from moeinf.hardware import Machine
from moeinf.types import AttentionSizes, ExpertLayout, ModelInfo, MoeShape, TensorSpec, Workspace

MIB = 1 << 20
INFO = ModelInfo("mixtral", 10, 5, 0, 32768, 1024, 8, 1000, 100_000, "bf16")
PARTS = tuple(
    TensorSpec(name, "bf16", shape, 0, 1)
    for name, shape in (("gate", (512, 1024)), ("up", (512, 1024)), ("down", (1024, 512)))
)
FOOTPRINT = Footprint(
    INFO,
    MoeShape(8, 16, 2),
    ExpertLayout(PARTS, 4 * MIB, 4 * MIB),
    300 * MIB,
    Workspace(attention=10_000, inputs=4096, layers=frozenset([AttentionSizes(1024, 8, 8, 128, 0, False)])),
)
WIDE = dataclasses.replace(
    FOOTPRINT,
    layout=ExpertLayout(
        tuple(
            TensorSpec(name, "bf16", shape, 0, 1)
            for name, shape in (("gate", (2048, 1024)), ("up", (2048, 1024)), ("down", (1024, 2048)))
        ),
        400 * MIB,
        400 * MIB,
    ),
)
# gpt-oss-120b: 36 layers of 128 experts of 13 MB
LARGE = dataclasses.replace(
    WIDE,
    moe=MoeShape(36, 128, 4),
    layout=dataclasses.replace(WIDE.layout, block_bytes=3233 * 4096, stride_bytes=3233 * 4096),
)


def on(available_mib: int) -> Machine:
    return Machine(available_mib * MIB, "machine", 2)
