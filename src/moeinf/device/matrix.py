"""Values that the device's kernels take: matrices in their stored format, the parts of an expert, grouped rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor

from moeinf.types import Format

MAX_ROWS: Final = 8  # tokens up to which a call is a decode step: no allocation, capturable in a graph


class DeviceMatrix(NamedTuple):
    """A matrix [rows, cols] on the device: `data` uint8, 1-D, rows of whole blocks of `format`."""

    data: Tensor
    format: Format
    rows: int
    cols: int


class ExpertPart(NamedTuple):
    """One matrix inside an expert's block."""

    format: Format
    rows: int
    cols: int
    offset_bytes: int


class ExpertParts(NamedTuple):
    """gate and up [intermediate, hidden], down [hidden, intermediate]."""

    gate: ExpertPart
    up: ExpertPart
    down: ExpertPart


class DeviceRouting(NamedTuple):
    """moeinf.types.Routing on the device, best expert first."""

    ids: Tensor  # int32 [tokens, top_k]
    weights: Tensor  # f32 [tokens, top_k]


@dataclass(frozen=True, slots=True)
class Groups:
    """The places (token * top_k + choice) of a batch of experts, sorted by expert and cut into tiles of rows."""

    places: Tensor  # int32 [places of the batch]
    starts: Tensor  # int32 [tiles]: first row of the tile in `places`
    counts: Tensor  # int32 [tiles]: rows of the tile, at most tile_rows
    addresses: Tensor  # int64 [tiles]: of the expert's block
    tile_rows: int
    top_k: int
