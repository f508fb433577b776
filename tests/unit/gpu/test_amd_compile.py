"""The kernels compile for AMD's cards: needs Triton, which has compilers for both makers, but no GPU.

Of these compilers' code nothing has run. `make gpu-compile` compiles every format and kernel for four cards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.compiling import ALL, AMD_TARGETS, FORMATS, lines_of
from tests.support.gpu import matrix_launches, vector_launches


@pytest.fixture(scope="module", params=AMD_TARGETS)
def compiled(request: pytest.FixtureRequest, triton_cache: Path) -> list[dict[str, Any]]:
    """What is said of each kernel for one target."""
    matrices = lines_of(matrix_launches.__file__, request.param, triton_cache, FORMATS if ALL else ("q4_k",))
    return matrices + (lines_of(vector_launches.__file__, request.param, triton_cache) if ALL else [])


def test_every_kernel_fits_into_the_memory_that_a_program_shares(compiled: list[dict[str, Any]]) -> None:
    assert {"linear", "gate_up", "down", "gate_up_grouped", "down_grouped", "widen"} <= {k["name"] for k in compiled}
    for kernel in compiled:
        assert kernel["fused"] is True and kernel["shared_bytes"] <= 64 << 10, kernel


def test_tiles_are_multiplied_by_matrix_cores_and_subnormal_numbers_kept(compiled: list[dict[str, Any]]) -> None:
    """Codes are read as subnormal floats: flushed to zero, most weights would be lost."""
    for kernel in compiled:
        assert kernel["subnormal"], kernel
        if "grouped" in kernel["name"] and "f32" not in kernel["formats"]:
            assert kernel["tensor_products"] > 0, kernel
