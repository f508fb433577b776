"""Turns runs of a checkpoint's elements into blocks of a stored format."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf._native import quantize
from moeinf.types import DTYPE_BYTES, FORMAT_BLOCKS, DType, Format


@dataclass(frozen=True, slots=True)
class Recast:
    """From elements of one type to blocks of a format. Blocks do not depend on each other, so a run may be cut at any
    border of blocks, and in any order."""

    tensor: str  # the source's name for it, for errors
    source: DType
    format: Format

    @property
    def unit_bytes(self) -> int:
        """Source bytes of one block."""
        return FORMAT_BLOCKS[self.format][0] * DTYPE_BYTES[self.source]

    def stored_bytes(self, num_bytes: int) -> int:
        """Size of what becomes of so many source bytes, a multiple of unit_bytes."""
        return num_bytes // self.unit_bytes * FORMAT_BLOCKS[self.format][1]

    def apply(self, data: memoryview) -> memoryview:
        """The blocks, computed without the GIL. Raises ValueError for a weight that no block can hold."""
        blocks = memoryview(bytearray(self.stored_bytes(len(data))))
        quantize(self.format, data, self.source, len(data) // self.unit_bytes, FORMAT_BLOCKS[self.format][0], blocks)
        return blocks
