"""Every kernel of TritonVectorOps compiles for real GPUs, at the shapes of models: needs Triton, but no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.compiling import TARGETS, lines_of
from tests.support.gpu import vector_launches

KERNELS = {"rms_norm", "rope_store", "attend_split", "attend_merge", "softmax_topk", "combine", "claim", "gather"}


@pytest.fixture(scope="module", params=TARGETS, ids=lambda target: f"sm_{target}")
def compiled(request: pytest.FixtureRequest, triton_cache: Path) -> list[dict[str, Any]]:
    """What is said of each kernel for one target."""
    return lines_of(vector_launches.__file__, request.param, triton_cache)


def test_every_kernel_compiles_and_fits_into_the_registers(compiled: list[dict[str, Any]]) -> None:
    assert {kernel["name"] for kernel in compiled} == KERNELS
    for kernel in compiled:
        assert kernel["fused"] is True, "Triton's default is to change, and with it each sum"
        assert kernel["shared_bytes"] <= 99 << 10, kernel  # what every card from 8.0 on gives a program
        # A few words, where ptxas stops at a round number of registers; one program of claim has all 16,384 slots.
        assert kernel["spilled_bytes"] <= (96 if kernel["name"] == "claim" else 32), kernel


def test_blocks_are_gathered_by_loads_and_stores_of_16_bytes(compiled: list[dict[str, Any]]) -> None:
    (gather,) = [kernel for kernel in compiled if kernel["name"] == "gather"]
    assert gather["wide_loads"] > 0 and gather["wide_stores"] > 0
