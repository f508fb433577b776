"""Large experts cut into slices of rows, each of which takes a slot, so that a cache may hold part of an expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeinf.store.format import round_up
from moeinf.store.manifest import Manifest
from moeinf.store.placed.places import region_bytes
from moeinf.types import ExpertLayout, TensorSpec

SLICE_BYTES: Final = 8 << 20  # about: a read of that size reaches the full rate of a disk
LEAST_BYTES: Final = 32 << 20  # of experts that are cut: of smaller ones many fit, and little memory lies idle
ROWS_STEP: Final = 64  # of a slice, but the last: whole panels for the kernels


@dataclass(frozen=True, slots=True)
class SlicePiece:
    """Rows of a part of all experts of a layer: where they lie in a file, and in a slot."""

    part: TensorSpec
    num_rows: int
    region: int  # offset in the slot of the block that the piece begins in
    file: int
    start: int  # of expert 0's rows in the file
    step: int  # from one expert to the next
    num_bytes: int  # that are read: beside the rows, what lies between them and the next part


@dataclass(frozen=True, slots=True)
class SliceSlots:
    """Slots that each hold a slice of an expert."""

    of_expert: int  # of those that are cut into most
    slot_bytes: int
    num_slots: int

    @property
    def num_bytes(self) -> int:
        return self.num_slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class ExpertSlices:
    """By layer: the slices of its experts, rows of gate and up first, then those of down; each of pieces."""

    layers: tuple[tuple[tuple[SlicePiece, ...], ...], ...]
    slot_bytes: int

    @property
    def most(self) -> int:
        """How many slices the experts have that have most."""
        return max(len(layer) for layer in self.layers)

    def slots_in(self, num_bytes: int) -> SliceSlots:
        """As many slots as this memory has room for."""
        return SliceSlots(self.most, self.slot_bytes, num_bytes // self.slot_bytes)


@dataclass(frozen=True, slots=True)
class _Place:
    part: TensorSpec
    file: int
    start: int
    step: int
    gap: int  # bytes behind the part that belong to no other


def slices_of(
    manifest: Manifest, least_bytes: int = LEAST_BYTES, slice_bytes: int = SLICE_BYTES
) -> ExpertSlices | None:
    """How the experts of a model are cut; None where they are too small for that."""
    if manifest.layout.stride_bytes < least_bytes:
        return None
    num_experts, layers, slot_bytes = manifest.moe.num_experts, [], 0
    for layer in range(manifest.moe.num_layers):
        places = _placed(manifest, layer) if manifest.in_place else _in_block(manifest, layer)
        slices = []
        for down in (False, True):
            group = [place for place in places if place.part.name.startswith("down") is down]
            slices += _cut(group, slice_bytes, num_experts)
        layers.append(tuple(slices))
        slot_bytes = max(slot_bytes, *(_end_of(each, num_experts) for each in slices))
    return ExpertSlices(tuple(layers), slot_bytes)


def _placed(manifest: Manifest, layer: int) -> list[_Place]:
    assert manifest.in_place is not None
    specs = manifest.layout_of(layer).tensors
    return [
        _Place(spec, place.file, place.offset_bytes, place.step_bytes, 0)
        for spec, place in zip(specs, manifest.in_place.experts[layer], strict=True)
    ]


def _in_block(manifest: Manifest, layer: int) -> list[_Place]:
    """The parts of blocks that follow each other, a file for each layer. Together with the gaps they make up all."""
    layout: ExpertLayout = manifest.layout_of(layer) if manifest.layers else manifest.layout
    ends = [*(spec.offset_bytes for spec in layout.tensors[1:]), layout.stride_bytes]
    return [
        _Place(spec, layer, spec.offset_bytes, layout.stride_bytes, end - spec.offset_bytes - spec.num_bytes)
        for spec, end in zip(layout.tensors, ends, strict=True)
    ]


def _cut(group: list[_Place], slice_bytes: int, num_experts: int) -> list[tuple[SlicePiece, ...]]:
    """The slices of parts that have the same rows."""
    rows = group[0].part.shape[0]
    count = -(-sum(place.part.num_bytes for place in group) // slice_bytes)
    step = round_up(-(-rows // count), ROWS_STEP)
    return [_slice(group, first, min(first + step, rows), num_experts) for first in range(0, rows, step)]


def _slice(group: list[_Place], first: int, last: int, num_experts: int) -> tuple[SlicePiece, ...]:
    pieces, region = [], 0
    for place in group:
        row_bytes = place.part.num_bytes // place.part.shape[0]
        num_bytes = (last - first) * row_bytes + (place.gap if last == place.part.shape[0] else 0)
        start = place.start + first * row_bytes
        pieces.append(SlicePiece(place.part, last - first, region, place.file, start, place.step, num_bytes))
        region += region_bytes(start, place.step, num_bytes, num_experts)
    return tuple(pieces)


def _end_of(pieces: tuple[SlicePiece, ...], num_experts: int) -> int:
    last = pieces[-1]
    return last.region + region_bytes(last.start, last.step, last.num_bytes, num_experts)
