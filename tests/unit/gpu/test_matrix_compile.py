"""Every kernel of TritonMatrixOps compiles for real GPUs, at the shapes of models: needs Triton, but no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.compiling import FORMATS, TARGETS, lines_of
from tests.support.gpu import matrix_launches
from tests.support.gpu.matrix_launches import PLAIN

KERNELS = {"linear", "gate_up", "down", "gate_up_grouped", "down_grouped", "widen"}
DECODE = {"linear", "gate_up", "down"}


@pytest.fixture(scope="module", params=TARGETS, ids=lambda target: f"sm_{target}")
def compiled(request: pytest.FixtureRequest, triton_cache: Path) -> list[dict[str, Any]]:
    """What is said of each kernel for one target."""
    return lines_of(matrix_launches.__file__, request.param, triton_cache)


def test_every_kernel_compiles_for_every_format_and_fits_into_the_registers(compiled: list[dict[str, Any]]) -> None:
    names = {(kernel["name"], format) for kernel in compiled for format in kernel["formats"]}
    assert names >= {(name, format) for name in KERNELS - {"widen"} for format in FORMATS}
    assert {format for name, format in names if name == "widen"} == set(FORMATS) - PLAIN
    for kernel in compiled:
        assert kernel["fused"] is True, "Triton's default is to change, and with it each sum"
        assert kernel["shared_bytes"] <= 99 << 10, kernel  # what every card from 8.0 on gives a program
        few_words = 32 if kernel["name"] in DECODE else 128  # a tile's are paid for by all its rows
        assert kernel["spilled_bytes"] <= few_words, kernel


def test_decode_leaves_room_for_three_programs_on_an_sm(compiled: list[dict[str, Any]]) -> None:
    for kernel in compiled:
        assert kernel["name"] not in DECODE or kernel["registers"] <= 168, kernel


def test_a_warp_runs_along_a_row_and_leaves_activations_in_their_threads(compiled: list[dict[str, Any]]) -> None:
    """Else each of them would wait for shared memory; the sums of a row's lanes meet there once, at the end."""
    for kernel in compiled:
        if kernel["name"] in DECODE and not PLAIN & set(kernel["formats"]):
            assert kernel["barriers"] <= 6, kernel


def test_plain_weights_are_loaded_16_bytes_at_a_time_wherever_an_expert_lies(compiled: list[dict[str, Any]]) -> None:
    """The compiler has to be told how addresses are aligned, and forgets it easily."""
    plain = [kernel for kernel in compiled if kernel["name"] in DECODE and set(kernel["formats"]) <= PLAIN]
    assert len(plain) >= len(DECODE) * len(PLAIN & set(FORMATS))
    for kernel in plain:
        assert kernel["wide_loads"] > 0 and (kernel["biased"] or kernel["narrow_loads"] == 0), kernel


def test_tiles_of_16_bit_numbers_are_multiplied_by_tensor_cores(compiled: list[dict[str, Any]]) -> None:
    for kernel in compiled:
        if "grouped" in kernel["name"]:
            assert (kernel["tensor_products"] > 0) == ("f32" not in kernel["formats"]), kernel


def test_no_warp_multiplies_what_another_does(compiled: list[dict[str, Any]]) -> None:
    """Of a tile of 64 pairs by 64 rows, twice where gated, and 64 weights, each of 8 warps has an eighth."""
    for kernel in compiled:
        if "grouped" in kernel["name"] and kernel["mma_products"]:
            assert kernel["mma_products"] == (32 if kernel["gated"] else 16), kernel


def test_products_keep_subnormal_numbers(compiled: list[dict[str, Any]]) -> None:
    """E2M1 is widened out of them: flushed to zero, a weight of 0.5 would be lost."""
    assert not any(kernel["flushing_products"] for kernel in compiled)
