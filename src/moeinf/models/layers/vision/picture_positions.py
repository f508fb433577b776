"""How the positions of text are turned by pictures, whose tokens have a time, a row and a column (M-RoPE)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.rope import Rope, rope_fields
from moeinf.types import JsonObject


def turned_by_pictures(config: JsonObject, rope: Rope | None, default: list[int]) -> Rope | None:
    """Of which pictures turn some frequencies by their rows and columns, one in three (Qwen3-VL).

    default: how many turn by time, rows and columns.
    """
    if rope is None or config.get("vision_config") is None:
        return rope
    f = rope_fields(Fields(config).within("text_config"))
    f.only("mrope_interleaved", True, None)
    sections = _sections(f, default)
    axes = np.zeros(len(rope.frequencies), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return replace(rope, axes=axes)


def turned_in_sections(f: Fields, rope: Rope, default: list[int]) -> Rope:
    """The first frequencies turn by time, the next by rows, the last by columns (GLM-4.1V). f: text_config."""
    r = rope_fields(f)
    r.only("mrope_interleaved", False, None)
    sections = _sections(r, default)
    if sum(sections) != len(rope.frequencies):
        raise UnsupportedModelError(
            f"{r.where}: mrope_section {sections} is of {sum(sections)} frequencies, of which heads have "
            f"{len(rope.frequencies)}"
        )
    return replace(rope, axes=np.repeat(np.arange(3), sections))


def turned_by_turns(f: Fields, rope: Rope, default: list[int]) -> Rope:
    """The first frequencies turn by rows and columns in turn, the last by time (ERNIE 4.5 VL). f: text_config."""
    sections = _sections(rope_fields(f), default)
    rows, cols, times = sections
    if rows != cols or sum(sections) != len(rope.frequencies):
        raise UnsupportedModelError(
            f"{f.where}: mrope_section {sections} is not supported for {len(rope.frequencies)} frequencies"
        )
    return replace(rope, axes=np.array([1, 2] * rows + [0] * times))


def _sections(f: Fields, default: list[int]) -> list[int]:
    return f.counts("mrope_section", 3) if f.get("mrope_section") is not None else default
