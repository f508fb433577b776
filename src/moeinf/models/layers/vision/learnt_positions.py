"""Learnt positions of a square grid of patches, brought to the grid of a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.vision.vision import Part
from moeinf.types import Float32Array, IntArray

_SHARPNESS = -0.75  # of the cubic kernel (Keys 1981), as torch has it


@dataclass(frozen=True, slots=True)
class LearntPositions:
    """How they lie between those of the grid.

    "corners": linear, the corners of the picture being those of the grid; "linear", "cubic": patches of the picture and
    of the grid are squares of one area, whose centres are looked up.
    """

    name: str  # of the tensor
    side: int
    between: Literal["corners", "linear", "cubic"]
    squared: bool = False  # the tensor has a dimension for rows and one for columns
    last: bool = False  # the tensor has a further row behind the grid, of a token that is no patch
    front: int = 0  # further rows in front of the grid, which nothing reads
    beyond: float = 0.0  # by which a picture's sides count as longer
    cropped: bool = False  # a picture is a part of a square as long as its longer side; tensors have a 1 in front
    bare: bool = False  # there is nothing beyond the grid, where otherwise its edges go on

    def shapes(self, hidden: int) -> Shapes:
        if self.squared:
            return {self.name: (self.side, self.side, hidden)}
        return {self.name: (*((1,) if self.cropped else ()), self.front + self.side**2 + self.last, hidden)}

    def of_patches(self, part: Part, row: IntArray, col: IntArray, grid: tuple[int, int]) -> Array:
        """[patches, hidden], of those at these rows and columns of the picture's grid; behind them, where there is one,
        that of the token that is no patch."""
        weights = part(self.name.removesuffix("weight")).weights
        rows = weights.math.to_host(weights.vector(self.name)).reshape(self.front + self.side**2 + self.last, -1)
        rows = rows[self.front :]
        table = rows[: self.side**2].reshape(self.side, self.side, -1)
        found: Float32Array = np.zeros((len(row), table.shape[2]), np.float32)
        counts = (max(grid),) * 2 if self.cropped else grid
        by_row, by_col = (self.taps(*each) for each in zip((row, col), counts, strict=True))
        for r, down in by_row:
            for c, across in by_col:
                found += table[r, c] * (down * across)[:, None]
        return weights.math.of_host(np.concatenate([found, rows[self.side**2 :]]))

    def taps(self, place: IntArray, count: int) -> list[tuple[IntArray, Float32Array]]:
        """The learnt rows or columns that each of some places among `count` is made of, with their weights."""
        one, side = np.float32(1), np.float32(self.side)
        if self.between == "corners":
            at = place.astype(np.float32) * (side - one) / np.float32(max(count - 1, 1))
        else:
            at = (place.astype(np.float32) + np.float32(0.5)) * side / np.float32(count + self.beyond) - np.float32(0.5)
        before = np.floor(at)
        kernel, offsets = (_cubic, range(-1, 3)) if self.between == "cubic" else (_linear, range(2))
        found = list[tuple[IntArray, Float32Array]]()
        for each in offsets:
            tap, weight = before.astype(np.int64) + each, kernel(np.abs(at - before - np.float32(each)))
            inside = np.clip(tap, 0, self.side - 1)
            found.append((inside, weight * (inside == tap) if self.bare else weight))
        return found


def _linear(distance: Float32Array) -> Float32Array:
    return 1 - distance


def _cubic(distance: Float32Array) -> Float32Array:
    a, d = np.float32(_SHARPNESS), distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    found: Float32Array = np.where(d <= 1, near, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)
    return found
