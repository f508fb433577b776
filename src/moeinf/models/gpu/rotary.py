"""Rotary positions on a GPU: tables over the whole context, and the position of a pass in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moeinf.models.layers.attention_config import Sharpening
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.soft_tokens import SoftTokens


class DevicePositions(NamedTuple):
    """The positions of one pass: tables over the whole context, and where in them its first token is."""

    cos: Tensor  # f32 [context, rotary_dim / 2]
    sin: Tensor
    position: Tensor  # int32 [1]: what captured work reads
    start: int  # the same number, for work that is not captured


class DeviceRotary:
    """Rotary positions, for every position of the context at once."""

    def __init__(self, device: torch.device, rope: Rope | None, context: int, factors: Tensor | None = None) -> None:
        """factors [rotary_dim / 2]: logarithms of what multiplies the frequencies, which have no `beyond`."""
        self._device, self._rope, self._context, self._factors = device, rope, context, factors
        self._tables: dict[Rope | None, tuple[Tensor, Tensor]] = {}
        self._turned_by: dict[Rope, list[tuple[int, tuple[int, int]]]] = {}  # the pictures of which tables know
        self._position = torch.zeros(1, dtype=torch.int32, device=device)

    def __call__(self, start: int, num_tokens: int, cache: Cache) -> DevicePositions:
        room = cache.capacity
        assert self._rope is None or room <= self._context, "tables end at the context"
        self._position.fill_(start)
        rope = None if self._rope is None else self._rope.within(room, cache.reach)
        tables = self._of(rope)
        if rope is not None and rope.axes is not None:
            self._turn_by(cache.pictures, rope, tables)
        return DevicePositions(*tables, self._position, start)

    def _turn_by(self, pictures: Sequence[SoftTokens], rope: Rope, tables: tuple[Tensor, Tensor]) -> None:
        """Writes the positions of a sequence with these pictures into the tables, where captured work finds them."""
        places = [(each.start, each.grid) for each in pictures]
        if places == self._turned_by.get(rope, []):
            return
        for table, values in zip(tables, rope.tables(0, self._context, pictures), strict=True):
            table.copy_(torch.from_numpy(values))
        self._turned_by[rope] = places

    def _of(self, rope: Rope | None) -> tuple[Tensor, Tensor]:
        if rope not in self._tables and self._factors is not None:
            assert rope is not None
            frequencies = torch.from_numpy(rope.frequencies).to(self._device) * torch.exp(self._factors)
            angles = torch.arange(self._context, dtype=torch.float32, device=self._device)[:, None] * frequencies
            self._tables[rope] = torch.cos(angles) * rope.scale, torch.sin(angles) * rope.scale
        if rope not in self._tables:
            cos, sin = (np.empty((0, 0), np.float32),) * 2 if rope is None else rope.tables(0, self._context)
            self._tables[rope] = torch.from_numpy(cos).to(self._device), torch.from_numpy(sin).to(self._device)
        return self._tables[rope]


def positions_of(positions: DevicePositions, at: int, tokens: int) -> Tensor:
    """Of the tokens from `at` of a pass: int64 [tokens]."""
    first: Tensor = positions.position
    return first + torch.arange(at, at + tokens, device=first.device)


def sharpened(s: Sharpening, positions: DevicePositions, at: int, tokens: int) -> Tensor:
    """What the queries of the tokens from `at` of a pass are multiplied by: f32 [tokens, 1]."""
    places = positions_of(positions, at, tokens) + s.offset
    if s.growth == "power":
        return torch.exp(s.sharpness * torch.log1p(places.float() / s.length))[:, None]
    if s.growth == "smooth":
        return 1 + s.sharpness * torch.log((places.float() / s.length).clamp(min=1.0))[:, None]
    return 1 + s.sharpness * torch.log1p((places // s.length).float())[:, None]
