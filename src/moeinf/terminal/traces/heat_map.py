"""An activation matrix as lines of characters: a row a layer, a column an expert, or some experts."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.runtime.policy.eamc import normalise_rows
from moeinf.types import FloatArray, IntArray, MoeShape

BORDERS: Final = (0.25, 0.6, 1.4, 3.0)  # times an even share: where the next darker character begins
CHARACTERS: Final = " ░▒▓█"
COLOURS: Final = (233, 54, 126, 208, 228)  # of a terminal with 256


def heat_map(matrix: IntArray, shape: MoeShape, columns: int, *, coloured: bool) -> list[str]:
    """Lines of at most `columns` characters; coloured: by a terminal's colours instead of characters."""
    together = -(-shape.num_experts // max(1, columns - 5))  # experts in one column
    lines = []
    for layer, row in enumerate(relative_use(matrix, shape)):
        own = row[: shape.experts_of(layer)]
        cells = [own[at : at + together].mean() for at in range(0, len(own), together)]
        levels = np.searchsorted(BORDERS, cells, side="right").tolist()
        if coloured:
            text = "".join(f"\x1b[48;5;{COLOURS[level]}m " for level in levels) + "\x1b[0m"
        else:
            text = "".join(CHARACTERS[level] for level in levels) + "|"
        lines.append(f"{layer:3} {'' if coloured else '|'}{text}")
    lines.append(_legend(together, coloured=coloured))
    return lines


def relative_use(matrix: IntArray, shape: MoeShape) -> FloatArray:
    """[layers, experts]: how often each expert was used, in multiples of an even share."""
    counts = np.array([shape.experts_of(layer) for layer in range(shape.num_layers)])
    relative: FloatArray = normalise_rows(matrix) * counts[:, None]
    return relative


def _legend(together: int, *, coloured: bool) -> str:
    marks = (
        [f"\x1b[48;5;{colour}m  \x1b[0m" for colour in COLOURS] if coloured else [f"'{each}'" for each in CHARACTERS]
    )
    lows = (0.0, *BORDERS)
    parts = [f"{mark} {low:g}" for mark, low in zip(marks, lows, strict=True)]
    column = "each column an expert" if together == 1 else f"each column {together} experts"
    return f"    {column}; from so many times an even share on: {', '.join(parts)}"
