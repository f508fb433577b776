"""Transforms of tensors that are read and not stored: a checkpoint may have them, if they say nothing new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.pull.checkpoint.layout import INTEGERS
from moeinf.store.format import STORE_DTYPES
from moeinf.store.numbers import SMALLEST, SPACING, floats
from moeinf.types import DTYPE_BYTES, Expected

_OTHERWISE_COMPUTED = 1e-5  # of a number, by which programs differ in powers and sines


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stores nothing of a tensor that the architecture has no use for, and that must be zero."""

    tensor: str
    unit_bytes: int

    def stored_bytes(self, num_bytes: int) -> int:
        return 0

    def part(self, start: int) -> LeftOut:
        return self

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        if any(data):
            raise ValueError("does not belong to this architecture, and is not zero")
        return data[:0]


@dataclass(frozen=True, eq=False)
class Follows:
    """Stores nothing of a tensor whose numbers follow from config.json, with which it must agree."""

    tensor: str
    dtype: str  # as files spell it
    choices: tuple[Expected, ...]
    unit_bytes: int

    def stored_bytes(self, num_bytes: int) -> int:
        return 0

    def part(self, start: int) -> Follows:
        return self

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        if not any(self._agrees(data, each) for each in self.choices):
            raise ValueError(
                "has other numbers than follow from config.json, by which moeinf computes; correct config.json, or "
                "remove the tensor if config.json is right"
            )
        return data[:0]

    def _agrees(self, data: memoryview, expected: Expected) -> bool:
        wanted = expected.values.reshape(-1)
        if self.dtype in INTEGERS:
            return np.array_equal(np.frombuffer(data, INTEGERS[self.dtype]), wanted)
        dtype = STORE_DTYPES.get(self.dtype)
        if dtype is None or len(data) != len(wanted) * DTYPE_BYTES[dtype]:
            return False
        error = np.abs(wanted) * (_OTHERWISE_COMPUTED + SPACING[dtype]) + expected.error + SMALLEST[dtype]
        return bool((np.abs(floats(data, dtype).astype(np.float64) - wanted) <= error).all())
