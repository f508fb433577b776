"""Copies a GGUF model into files of the store's own: one block for each expert, in the formats that it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.gguf.undo import Kind, Stored, Undo, Widen, outcome, parse_undo, undone
from moeinf.pull.events import PullProgress
from moeinf.pull.gguf.index import Index
from moeinf.pull.gguf.weight_file import WeightFile
from moeinf.store.files import errors_named, make_folders, write_fully
from moeinf.store.format import (
    DENSE_FILE,
    VISION_FILE,
    BlockTensor,
    dense_header,
    expert_layout,
    is_quantised,
    shard_file,
)
from moeinf.store.manifest import FileEntry, Manifest, ShardEntry, shard_entries, slot_layout
from moeinf.store.placed.places import DensePlace, InPlace
from moeinf.store.sums.checksums import dump_checksums
from moeinf.store.sums.spans import Finding, Span, check_spans, dense_span, expert_spans, gathered, vision_span
from moeinf.types import ByteArray, ExpertLayout, Format

Advance = Callable[[int], None]
Formats = Mapping[str, tuple[Format, tuple[int, ...]]]  # and shapes, by the names of tensors


def repacked_bytes(index: Index) -> int:
    """About the size of the files that `repack` writes, which it also reads back."""
    assert index.manifest.in_place is not None
    return index.manifest.in_place.num_bytes


def repack_told(index: Index, source: Path, folder: Path, name: str, progress: PullProgress) -> tuple[Index, bytes]:
    """`repack` of the model `name`, with its progress."""
    total = 2 * repacked_bytes(index)  # written, and read back
    progress.total("converting", total, 0)
    progress.start("converting", name, total, 0)
    made = repack(index, source, folder, progress.advance)
    progress.finish()
    return made


def repack(index: Index, source: Path, folder: Path, advance: Advance) -> tuple[Index, bytes]:
    """Writes experts and dense weights into a folder; returns the index of that model, and its checksums.

    source: the model's folder, where the files of the index may lie. Layers keep layouts of their own.
    """
    manifest, in_place = index.manifest, index.manifest.in_place
    assert in_place is not None
    make_folders(folder)
    files = [WeightFile(path) for path in in_place.paths(source)]
    try:
        layers = _write_experts(manifest, in_place, files, folder, advance)
        formats = {place.name: _kind(place) for place in in_place.dense}
        _write_dense(folder / DENSE_FILE, in_place.dense, formats, files, advance)
        tower = {place.name: _plain(_kind(place)) for place in in_place.vision}
        if tower:
            _write_dense(folder / VISION_FILE, in_place.vision, tower, files, advance)
    finally:
        for file in files:
            file.close()
    shards, dense, vision, checksums = read_back(manifest, layers, formats, folder, advance)
    own = replace(
        manifest,
        layout=slot_layout(layers),
        layers=tuple(layers),
        shards=shards,
        files=(dense,),
        formats=replace(
            manifest.formats,
            dense={name: BlockTensor(*kind) for name, kind in formats.items() if is_quantised(kind[0])},
        ),
        in_place=None,
        vision=vision,
    )
    return Index(own, index.small_files), checksums


def _write_experts(
    manifest: Manifest, in_place: InPlace, files: Sequence[WeightFile], folder: Path, advance: Advance
) -> list[ExpertLayout]:
    layers = []
    for layer, places in enumerate(in_place.experts):
        specs = manifest.layout_of(layer).tensors
        layout = expert_layout([(spec.name, spec.dtype, spec.shape) for spec in specs])
        path = folder / shard_file(layer)
        with errors_named(path), path.open("wb") as shard:
            for expert in range(manifest.moe.experts_of(layer)):
                block = np.zeros(layout.stride_bytes, np.uint8)
                for spec, place in zip(layout.tensors, places, strict=True):
                    data = files[place.file].read(place.offset_bytes + expert * place.step_bytes, spec.num_bytes)
                    block[spec.offset_bytes : spec.offset_bytes + spec.num_bytes] = data
                shard.write(block.data)
                advance(len(block))
            shard.flush()
            os.fsync(shard.fileno())
        layers.append(layout)
    return layers


def _write_dense(
    path: Path, dense: Sequence[DensePlace], formats: Formats, files: Sequence[WeightFile], advance: Advance
) -> None:
    """Writes a file of tensors in these formats and shapes, from which its header follows again."""
    head, specs = dense_header(formats)
    places = {place.name: place for place in dense}
    with errors_named(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write_fully(fd, head, 0, path)
            for spec in specs:
                write_fully(fd, _made(places[spec.name], spec.dtype, files).data, spec.offset_bytes, path)
                advance(spec.num_bytes)
            os.fsync(fd)
        finally:
            os.close(fd)


def _kind(place: DensePlace) -> tuple[Format, tuple[int, ...]]:
    kind = outcome([Kind(each.format, each.shape) for each in place.sources], _undo(place))
    assert kind is not None, "the index has asked"
    return kind.format, kind.shape


def _plain(kind: tuple[Format, tuple[int, ...]]) -> tuple[Format, tuple[int, ...]]:
    """Of a tower, whose file has no blocks: these are widened."""
    return ("f32" if is_quantised(kind[0]) else kind[0]), kind[1]


def _made(place: DensePlace, format: Format, files: Sequence[WeightFile]) -> ByteArray:
    given = [
        Stored(Kind(each.format, each.shape), files[each.file].read(each.offset_bytes, each.num_bytes))
        for each in place.sources
    ]
    widens = (Widen(),) if format != _kind(place)[0] else ()
    return np.ascontiguousarray(undone(given, (*_undo(place), *widens), place.name).data)


def _undo(place: DensePlace) -> Undo:
    return parse_undo(list(place.undo), place.name)


def read_back(
    manifest: Manifest, layers: Sequence[ExpertLayout], formats: Formats, folder: Path, advance: Advance
) -> tuple[tuple[ShardEntry, ...], FileEntry, FileEntry | None, bytes]:
    """Reads what was written for its checksums. Raises CheckpointError for a scale that is no number."""
    _, specs = dense_header(formats)
    dense = folder / DENSE_FILE
    size, moe = dense.stat().st_size, manifest.moe
    spans: list[Span] = [dense_span(dense, size, specs, manifest.info)]
    for layer, layout in enumerate(layers):
        spans += expert_spans(folder / shard_file(layer), moe.experts_of(layer), layout)
    tower = folder / VISION_FILE
    if tower.exists():
        spans.append(vision_span(tower, tower.stat().st_size))
    found: list[Finding] = []
    with closing(check_spans(spans)) as results:
        for span, each in zip(spans, results, strict=True):
            with errors_named(span.path):
                if isinstance(each, OSError):
                    raise each
            if each.fault:
                raise CheckpointError(f"{span.path.name}: {each.fault}; fetch the file again, or take another one")
            found.append(each)
            advance(span.num_bytes)
    sums = [each.sha256 for each in found]
    vision = FileEntry(VISION_FILE, spans[-1].num_bytes, sums.pop()) if tower.exists() else None
    shards = shard_entries(moe, [layout.stride_bytes for layout in layers], sums[1:])
    return shards, FileEntry(DENSE_FILE, size, sums[0]), vision, dump_checksums(gathered(spans, found))
