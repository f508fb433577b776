"""Convolutions behind a vision transformer, each of which makes one of every square of 2 * 2 patches (Step 3.7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf.models.layers.array_math import Array, joined
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.vision.vision import Part
from moeinf.types import Float32Array


def halving_shapes(names: Sequence[str], width: int) -> Shapes:
    """Of convolutions of 3 * 3 patches, each to twice as many numbers; width: of the first one's patches."""
    shapes = Shapes()
    for name in names:
        shapes |= {f"{name}.weight": (2 * width, width, 3, 3), f"{name}.bias": (2 * width,)}
        width *= 2
    return shapes


def halved(part: Part, names: Sequence[str], x: Array, grids: Sequence[tuple[int, int]]) -> Array:
    """x: the patches of views, row by row; grids: the rows and columns of each. In steps of 2, with zeros around."""
    for name in names:
        weights, found, at = part(f"{name}.").weights, list[Array](), 0
        convolution = weights.linear(f"{name}.weight", f"{name}.bias")
        for rows, cols in grids:
            taps = _taps(weights.math.to_host(x[at : at + rows * cols]).reshape(rows, cols, -1))
            found.append(convolution(weights.math.of_host(taps)))
            at += rows * cols
        x, grids = joined(weights.math, found), [(-(-rows // 2), -(-cols // 2)) for rows, cols in grids]
    return x


def _taps(patches: Float32Array) -> Float32Array:
    """[rows, cols, width] -> [every other row * every other column, width * 9]: the squares of 3 * 3 around them."""
    around = np.pad(patches, ((1, 1), (1, 1), (0, 0)))
    squares = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (0, 1))[::2, ::2]
    return np.ascontiguousarray(squares).reshape(-1, patches.shape[2] * 9)
