"""Values that the device's kernels take: matrices in their stored format, the parts of an expert, grouped rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from moeinf.types import DEVICE_FORMATS, ExpertForm, ExpertLayout, Format

LAUNCH: Final = {"enable_fp_fusion": True}  # of every kernel: Triton's default is to change, and sums with it
MAX_ROWS: Final = 8  # tokens up to which a call is a decode step: no allocation, capturable in a graph
LANE_BYTES: Final = 8  # of a row's codes, that a lane of a decode kernel takes

PLAIN_DTYPES: Final[Mapping[Format, torch.dtype]] = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class DeviceMatrix(NamedTuple):
    """A matrix [rows, cols] on the device: `data` uint8, 1-D, rows of whole blocks of `format`."""

    data: Tensor
    format: Format
    rows: int
    cols: int


class ExpertPart(NamedTuple):
    """One matrix inside an expert's block, or a bias: of one column, and of a plain format."""

    format: Format
    rows: int
    cols: int
    offset_bytes: int


class ExpertParts(NamedTuple):
    """gate and up [intermediate, hidden], down [hidden, intermediate], and what an expert computes with them."""

    gate: ExpertPart | None  # None: the form is not gated
    up: ExpertPart
    down: ExpertPart
    gate_bias: ExpertPart | None = None
    up_bias: ExpertPart | None = None
    down_bias: ExpertPart | None = None
    form: ExpertForm = ExpertForm()


def expert_parts_of(layout: ExpertLayout, form: ExpertForm) -> ExpertParts:
    """The parts of an expert's block, by their names."""
    found = {
        t.name: ExpertPart(t.dtype, t.shape[0], t.shape[1] if len(t.shape) > 1 else 1, t.offset_bytes)
        for t in layout.tensors
    }
    names = ["up", "down"] + ["gate"] * form.gated
    names += [f"{name}_bias" for name in names if form.biased]
    assert all(part.format in DEVICE_FORMATS for part in found.values()), "the layout is that of a device's slots"
    assert found.keys() == set(names), f"an expert of the form {form} has not the parts {sorted(found)}"
    return ExpertParts(
        found.get("gate"),
        found["up"],
        found["down"],
        found.get("gate_bias"),
        found.get("up_bias"),
        found.get("down_bias"),
        form,
    )


class DeviceRouting(NamedTuple):
    """moeinf.types.Routing on the device, best expert first."""

    ids: Tensor  # int32 [tokens, top_k]
    weights: Tensor  # f32 [tokens, top_k]


@dataclass(frozen=True, slots=True)
class Groups:
    """The pairs (token * top_k + choice) of a batch of experts, sorted by expert and cut into tiles of rows."""

    pairs: Tensor  # int32 [pairs of the batch]
    starts: Tensor  # int32 [tiles]: first row of the tile in `pairs`
    counts: Tensor  # int32 [tiles]: rows of the tile, at most tile_rows
    addresses: Tensor  # int64 [tiles]: of the expert's block
    tile_rows: int
    top_k: int
