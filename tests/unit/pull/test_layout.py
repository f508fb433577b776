"""What becomes of weights that are coded, scaled or ordered in another way than the store has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeinf.pull.checkpoint.layout import Strided, View
from moeinf.pull.coded.blocks import CodedRows
from moeinf.pull.coded.float8 import Float8
from moeinf.types import DType

NONE: list[memoryview] = []


def fp8(rows: int, cols: int, tile: tuple[int, int]) -> CodedRows:
    scheme = Float8("t", (rows, cols), "t", ("s",), "FP8", "bf16", True, "bf16", tile, "F32")
    return CodedRows(scheme, "bf16", range(rows), cols)


def data_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def bf16_of(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16)


@pytest.mark.parametrize("scale", [1.0, 2.0**-9 / 3, 1e-38, 3e35, 448 / 7], ids=str)
def test_every_code_of_float8_means_what_it_means_to_torch(scale: float) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.where(every.float().isnan(), 0.0, every.float()).to(torch.float8_e4m3fn)
    transform, scales = fp8(1, 256, (128, 256)), [data_of(torch.tensor([scale]))]
    assert torch.equal(bf16_of(transform.apply(data_of(codes), scales)), (codes.float() * scale).bfloat16())
    for code in (127, 255):  # no numbers
        codes[code] = every[code]
        with pytest.raises(ValueError, match="NaN"):
            transform.apply(data_of(codes), scales)
        codes[code] = 0


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.data())
def test_fp8_may_be_cut_between_any_two_rows(rows: int, cols: int, high: int, wide: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    codes = torch.randn(rows, cols, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // high), -(-cols // wide), generator=generator)
    each = scales.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :cols]
    transform = fp8(rows, cols, (high, wide))

    def beside(start: int, end: int) -> torch.Tensor:
        """Rows that have scales of their own are given these alone."""
        return scales[start:end] if high == 1 else scales

    at = data.draw(st.integers(0, rows))
    found = [
        bf16_of(transform.part(start * cols).apply(data_of(codes[start:end]), [data_of(beside(start, end))]))
        for start, end in ((0, at), (at, rows))
        if start < end
    ]
    assert torch.equal(torch.cat(found).view(rows, cols), (codes.float() * each).bfloat16())
    assert transform.stored_bytes(rows * cols) == rows * cols * 2


@pytest.mark.parametrize(("dtype", "of"), [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")])
def test_a_view_takes_rows_from_between_others_and_turns_matrices(dtype: torch.dtype, of: DType) -> None:
    slab = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    for view, wanted in (
        (View(8, (3, 8), (16, 1)), slab[1::2]),
        (View(1, (4, 6), (2, 8)), slab[:, 1::2].T),
        (View(3, (5,), (2,)), slab.view(-1)[3:13:2]),
    ):
        transform = Strided("t", of, of, view, view.shape, slab.numel() * dtype.itemsize)
        assert bytes(transform.apply(data_of(slab), NONE)) == bytes(data_of(wanted))
        assert transform.stored_bytes(transform.unit_bytes) == wanted.numel() * dtype.itemsize
        assert view.end <= slab.numel() and transform.stored_bytes(0) == 0


def test_what_fills_a_part_of_a_matrix_is_followed_by_zeros() -> None:
    slab = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for view, shape in (
        (View(0, (6, 8), (8, 1)), (9, 8)),
        (View(0, (6, 8), (8, 1)), (6, 32)),
        (View(3, (5,), (1,)), (8,)),
        (View(1, (4, 6), (2, 8)), (7, 64)),
    ):
        transform = Strided("t", "f32", "f32", view, shape, slab.nbytes)
        wanted = torch.zeros(shape)
        wanted[tuple(map(slice, view.shape))] = slab.flatten().as_strided(view.shape, view.strides, view.start)
        assert bytes(transform.apply(data_of(slab), NONE)) == bytes(data_of(wanted))
        assert transform.stored_bytes(transform.unit_bytes) == wanted.nbytes


def test_a_view_of_groups_is_that_of_their_elements() -> None:
    weights = np.arange(4 * 64, dtype=np.uint8)
    view = View(64, (2, 64), (128, 1))
    groups = view.in_steps_of(32)
    assert groups == View(2, (2, 2), (4, 1)) and groups.end == 8
    assert bytes(view.of(weights.data)) == bytes(weights.reshape(4, 64)[1::2].tobytes())
