"""Towers that give learnt rows besides: behind each row of a picture's tokens, in front of all, and behind all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.models.layers.vision.image_processor import Patches
from moeinf.models.layers.vision.mergers import Merger
from moeinf.models.layers.vision.vision import Grid, Item, Part
from moeinf.models.layers.vision.vit import MergingTower, VitConfig
from moeinf.types import Float32Array


@dataclass(frozen=True, slots=True)
class Frame:
    """The names of the rows."""

    newline: str
    ends: tuple[str, str] | None = None  # in front of all, and behind all

    @property
    def names(self) -> tuple[str, ...]:
        return (self.newline, *(self.ends or ()))


class FramedTower(MergingTower):
    def __init__(self, config: VitConfig, merger: Merger, frame: Frame) -> None:
        super().__init__(config, merger)
        self._merge, self._frame = config.cut.merge, frame
        self.shapes |= dict.fromkeys(frame.names, (config.out_hidden,))

    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        [view] = views
        rows = super().rows(part, views)
        newline, *ends = (self._row(part, name) for name in self._frame.names)
        lines = rows.reshape(-(-view.grid[0] // self._merge), -1, rows.shape[1])
        ended = [np.concatenate([line, newline]) for line in lines]
        return np.concatenate([*ends[:1], *ended, *ends[1:]])

    def _row(self, part: Part, name: str) -> Float32Array:
        """[1, hidden]"""
        weights = part(name).weights
        return weights.math.to_host(weights.vector(name))[None]


@dataclass(frozen=True, slots=True)
class Framed:
    """The tokens of a picture with its learnt rows, which count as tokens of it: in a grid, unless it has ends."""

    ends: bool

    def items(self, views: Sequence[Sequence[Grid]]) -> Sequence[Item]:
        [[(rows, cols)]] = views
        return [(1, rows * (cols + 1) + 2) if self.ends else (rows, cols + 1)]
