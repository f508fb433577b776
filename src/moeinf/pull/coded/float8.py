"""FP8: a matrix in float8_e4m3, with one scale for all of it, for each row, or for each tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.scheme import E4M3, FLOATS, POWERS, Decoded, Pool, Scheme, Shape, floats, member
from moeinf.types import IntArray

CODES = "F8_E4M3"
_BYTES = "U8"  # of which files of MXFP8 have their powers of two
_SCALES = ("_scale_inv", "_scale")  # behind the name of the weights; both multiply


@dataclass(frozen=True, slots=True)
class Float8(Scheme):
    """Each weight is multiplied by the scale of its tile; the last tiles are smaller where no whole ones fit.

    A tile is [128, 128] in DeepSeek-V3 (arXiv 2412.19437, 3.3), a part of a row in tables of DeepSeek-V4.1 and in MXFP8
    (OCP Microscaling Formats 1.0), a row, or the whole matrix. The weights are the products in bf16, which is what
    published programs compute with.
    Where a matrix is shares of several processors, one behind the other, the first tiles of each begin with it.
    """

    tile: tuple[int, int]
    scale_dtype: str
    shares: int = 1

    through: ClassVar[Literal["f32", "bf16"]] = "bf16"
    by_rows: ClassVar[bool] = True

    @property
    def others_by_rows(self) -> bool:
        return self.tile[0] == 1

    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        values = E4M3[np.frombuffer(codes, np.uint8)].reshape(-1, self.cols)
        factors = floats(others[0], self.scale_dtype).reshape(-1, -(-self.cols // self.tile[1]))
        scales = factors if self.others_by_rows else factors[self._tiles(np.arange(rows.start, rows.stop))]
        return Decoded(values, scales, None if scales.shape[1] == 1 else np.arange(self.cols) // self.tile[1])

    def turned(self) -> Scheme | None:
        if self.shares != 1:
            return None
        shape = (*self.shape[:-2], self.cols, self.rows)
        return TurnedFloat8(
            self.name, shape, self.codes, self.others, self.words, self.nearest, self.exact, self.plain, self.tile,
            self.scale_dtype,
        )  # fmt: skip

    def _tiles(self, rows: IntArray) -> IntArray:
        """Which row of tiles each row lies in."""
        size = self.rows // self.shares
        tiles: IntArray = rows // size * -(-size // self.tile[0]) + rows % size // self.tile[0]
        return tiles


@dataclass(frozen=True, slots=True)
class TurnedFloat8(Scheme):
    """Weights as those of Float8, of matrices that are stored with their columns first, as Qwen3-VL's experts are."""

    tile: tuple[int, int]  # of the matrix as it is stored
    scale_dtype: str

    through: ClassVar[Literal["f32", "bf16"]] = "bf16"

    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        values = E4M3[np.frombuffer(codes, np.uint8).reshape(self.cols, self.rows)[:, rows.start : rows.stop]]
        factors = floats(others[0], self.scale_dtype).reshape(-(-self.cols // self.tile[0]), -1)
        scales = factors[:, np.arange(rows.start, rows.stop) // self.tile[1]]
        groups = np.arange(self.cols) // self.tile[0]
        return Decoded(np.ascontiguousarray(values.T), np.ascontiguousarray(scales.T), groups)


def float8(pool: Pool, name: str, shape: Shape, declared: Declared, shares: int = 1) -> Scheme:
    if len(shape) < 2:
        raise UnsupportedModelError(f"tensor {name!r} has dtype {CODES} but is no matrix")
    member(pool, name, name, (CODES,), shape)
    scales = next((name + end for end in _SCALES if pool.found(name + end)), name + _SCALES[0])
    stack, rows, cols = shape[:-2], shape[-2], shape[-1]
    high, wide = declared.tile_of(name) or (rows, cols)
    shared = (shares * -(-rows // shares // high), -(-cols // wide))
    kinds: dict[Shape, tuple[int, int]] = {
        (*stack, -(-rows // high), -(-cols // wide)): (high, wide),
        (*stack, rows, 1): (1, cols),
        (*stack, rows): (1, cols),
        (*stack, 1, 1): (rows, cols),
        (*stack, 1): (rows, cols),
        stack: (rows, cols),
        (*stack, rows, -(-cols // wide)): (1, wide),
    }
    if shares > 1:
        kinds |= {shared: (high, wide)}
    powers = {POWERS, _BYTES} if declared.method == "mxfp8" else {POWERS}
    try:
        entry = member(pool, name, scales, FLOATS | powers, *kinds)
    except CheckpointError as error:
        if declared.tile_of(name) is None and pool.found(scales):
            raise CheckpointError(f"{error}; tiles have a weight_block_size in config.json") from None
        raise
    apart = shares if entry.shape == shared else 1
    dtype = POWERS if entry.dtype == _BYTES else entry.dtype
    return Float8(name, shape, name, (scales,), "FP8", "bf16", True, "bf16", kinds[entry.shape], dtype, apart)
