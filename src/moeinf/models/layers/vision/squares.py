"""Squares of patches that become one token each, of views whose sides need not be whole squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf.models.layers.array_math import Array, ArrayMath
from moeinf.types import Float32Array


def in_squares(math: ArrayMath, x: Array, grids: Sequence[tuple[int, int]], side: int) -> Array:
    """x: the patches of views, row by row; grids: the rows and columns of each.

    [patches of all squares, width]: those of a square follow one another; zeros fill up the last squares.
    """
    found, at, patches = list[Float32Array](), 0, math.to_host(x)
    for rows, cols in grids:
        view = patches[at : at + rows * cols].reshape(rows, cols, -1)
        whole = np.pad(view, ((0, -rows % side), (0, -cols % side), (0, 0)))
        squares = whole.reshape(len(whole) // side, side, -1, side, view.shape[2]).swapaxes(1, 2)
        found.append(squares.reshape(-1, view.shape[2]))
        at += rows * cols
    return math.of_host(np.concatenate(found))
