"""Where the experts of a stored model lie, and what their parts are, for reader and kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from moeinf.runtime.cache.table import BoolArray
from moeinf.runtime.io.read_places import ExpertPlaces, PlacedReads
from moeinf.runtime.io.reader_protocol import DiskReader
from moeinf.store.manifest import Manifest
from moeinf.store.placed.expert_slices import ExpertSlices, SlicePiece
from moeinf.store.placed.places import InPlace
from moeinf.store.placed.sums import PlacedRun, placed_runs
from moeinf.types import ExpertLayout, IntArray, SumRun

Scaled = tuple[str, int, int, int, int, int, Sequence[float]]
Parts = Mapping[str, tuple[str, int, int, int] | tuple[str, int, int, int, int, int] | Scaled]


def expert_parts(layout: ExpertLayout) -> dict[str, tuple[str, int, int, int]]:
    """Returns (format, rows, cols, offset in the block) by name, as ExpertKernel takes them. A bias has one column."""
    return {t.name: (t.dtype, t.shape[0], math.prod(t.shape[1:]), t.offset_bytes) for t in layout.tensors}


def parts_of_layers(manifest: Manifest) -> Parts | list[Parts]:
    """The parts as ExpertKernel takes them: those of all layers, or of each."""
    if not manifest.layers:
        return expert_parts(manifest.layout)
    if manifest.in_place is None:
        parts: list[Parts] = [expert_parts(layout) for layout in manifest.layers]
    else:
        parts = [_placed_parts(manifest, manifest.in_place, layer) for layer in range(manifest.moe.num_layers)]
    return [_scaled(*each) for each in zip(parts, manifest.scales.experts or [{}] * len(parts), strict=True)]


def _scaled(parts: Parts, scales: Mapping[str, Sequence[float]]) -> Parts:
    """With a factor for each expert. A part that lies at the same place of every block has no start and step."""
    places = {name: (*parts[name], 0, 0)[:6] for name in scales if name in parts}
    return {**parts, **{name: cast(Scaled, (*place, scales[name])) for name, place in places.items()}}


def _placed_parts(manifest: Manifest, in_place: InPlace, layer: int) -> Parts:
    layout = manifest.layout_of(layer)
    return {
        spec.name: (
            spec.dtype,
            spec.shape[0],
            math.prod(spec.shape[1:]),
            spec.offset_bytes,
            place.offset_bytes,
            place.step_bytes,
        )
        for spec, place in zip(layout.tensors, in_place.experts[layer], strict=True)
    }


def parts_of_slices(manifest: Manifest, slices: ExpertSlices) -> list[list[Parts]]:
    """The same of experts that are cut: those of each layer, by slice."""
    scales: Sequence[Mapping[str, Sequence[float]]] = manifest.scales.experts or [{}] * len(slices.layers)
    return [
        [_scaled({piece.part.name: _part_of(piece) for piece in each}, factors) for each in layer]
        for layer, factors in zip(slices.layers, scales, strict=True)
    ]


def _part_of(piece: SlicePiece) -> tuple[str, int, int, int, int, int]:
    """The piece as ExpertKernel takes a part."""
    columns = math.prod(piece.part.shape[1:])
    return piece.part.dtype, piece.num_rows, columns, piece.region, piece.start, piece.step


def sliced_reads(manifest: Manifest, slices: ExpertSlices, reader: DiskReader) -> PlacedReads:
    """How slices are read. A layer whose experts have fewer than others has nothing to read behind its last."""
    nothing: list[SlicePiece] = []
    rows = [each for layer in slices.layers for each in (*layer, *[nothing] * (slices.most - len(layer)))]
    columns = [
        [[getattr(piece, name) for piece in row] for row in rows]
        for name in ("file", "start", "step", "num_bytes", "region")
    ]
    places = ExpertPlaces(*(_table(column) for column in columns))
    return PlacedReads(reader, places, manifest.moe.num_experts, slices.most)


def slices_that_exist(manifest: Manifest, slices: ExpertSlices) -> BoolArray:
    """By key of a slice, whether there is such a slice of such an expert."""
    moe, most = manifest.moe, slices.most
    exists = np.zeros((moe.num_layers, moe.num_experts, most), np.bool_)
    for layer, of_layer in enumerate(slices.layers):
        exists[layer, : moe.experts_of(layer), : len(of_layer)] = True
    return exists.ravel()


def placed_reads(manifest: Manifest, reader: DiskReader) -> PlacedReads | None:
    """How experts are read; None where each layer has a file of blocks of one size."""
    if not manifest.layers:
        return None
    rows = _placed(manifest, manifest.in_place) if manifest.in_place else _blocks(manifest)
    return PlacedReads(reader, ExpertPlaces(*(_table(column) for column in rows)), manifest.moe.num_experts)


def _placed(manifest: Manifest, in_place: InPlace) -> Sequence[list[list[int]]]:
    specs = [manifest.layout_of(layer).tensors for layer in range(manifest.moe.num_layers)]
    return (
        [[place.file for place in places] for places in in_place.experts],
        [[place.offset_bytes for place in places] for places in in_place.experts],
        [[place.step_bytes for place in places] for places in in_place.experts],
        [[spec.num_bytes for spec in of_layer] for of_layer in specs],
        [[spec.offset_bytes for spec in of_layer] for of_layer in specs],
    )


def _blocks(manifest: Manifest) -> Sequence[list[list[int]]]:
    """A file for each layer, in which a block follows the other."""
    strides = [[layout.stride_bytes] for layout in manifest.layers]
    zeros = [[0] for _ in strides]
    return [[layer] for layer in range(len(strides))], zeros, strides, strides, zeros


def _table(rows: list[list[int]]) -> IntArray:
    """[layers, pieces]; rows that are shorter end with 0."""
    width = max(len(row) for row in rows)
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int64)


def expert_sums(manifest: Manifest, runs: Sequence[SumRun]) -> list[SumRun]:
    """Those of the checksums that experts are compared with as they are read."""
    if manifest.in_place is None:
        shards = {shard.file for shard in manifest.shards}
        return [run for run in runs if run.file in shards]
    files = manifest.in_place.files
    wanted = {(files[each.file].file, each.tensor.offset_bytes) for each in placed_runs(manifest) if _of_experts(each)}
    return [run for run in runs if (run.file, run.start) in wanted]


def _of_experts(run: PlacedRun) -> bool:
    return run.units_of_expert > 0
