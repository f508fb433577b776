"""Parts of experts that are made of several tensors, beside each other or one behind the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.pull.coded.blocks import encoded
from moeinf.pull.coded.scheme import Decoded, floats
from moeinf.store.numbers import NOT_FINITE
from moeinf.types import DType, Format, format_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a part the numbers of one source begin, and what becomes of them."""

    row: int
    col: int
    shape: tuple[int, int]
    times: float


@dataclass(frozen=True, slots=True)
class Joined:
    """Puts the numbers of several sources into one matrix, and quantises that where the format asks for it.

    Products with what they are multiplied by are rounded once, to the type that is stored.
    """

    tensor: str  # the first of the sources; the others are read beside it
    source: DType  # of all of them
    format: Format
    shape: tuple[int, int]
    places: tuple[Place, ...]  # of all of them; they fill the part
    unit_bytes: int  # the whole run

    def stored_bytes(self, num_bytes: int) -> int:
        return format_bytes(self.format, self.shape) * (num_bytes > 0)

    def part(self, start: int) -> Joined:
        return self

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        assert sum(math.prod(place.shape) for place in self.places) == math.prod(self.shape)
        made = np.zeros(self.shape, np.float32)
        for place, given in zip(self.places, (data, *others), strict=True):
            rows, cols = place.shape
            numbers = floats(given, self.source.upper()).reshape(rows, cols)
            made[place.row : place.row + rows, place.col : place.col + cols] = numbers * np.float32(place.times)
        if not np.isfinite(made).all():
            raise ValueError(f"or what belongs to it has a number that is NaN or infinite; {NOT_FINITE}")
        whole = Decoded(made, np.ones((self.shape[0], 1), np.float32))
        return encoded(whole, self.format, "f32", False)[0].reshape(-1).data
