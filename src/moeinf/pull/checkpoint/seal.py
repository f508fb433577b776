"""Turns a fully converted work folder into a published model: checksums, manifest, rename, name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from moeinf.errors import StoreError
from moeinf.pull.checkpoint.conversion_plan import Conversion
from moeinf.store.dense import dense_tensors
from moeinf.store.files import errors_named, publish, sync_folder, write_fully
from moeinf.store.format import AHEAD_FILE, DENSE_FILE, VISION_FILE, shard_file
from moeinf.store.library import SOURCE_RECORD_FILE
from moeinf.store.manifest import MANIFEST_FILE, FileEntry, Manifest, ModelSource, ShardEntry, model_id, shard_entries
from moeinf.store.sums.checksums import CHECKSUMS_FILE, dump_checksums
from moeinf.store.sums.spans import Finding, Span, check_spans, dense_span, expert_spans, gathered, vision_span
from moeinf.types import ModelInfo, SumRun


def write_small_file(path: Path, data: bytes) -> None:
    """Writes a file and flushes its bytes. Its name becomes durable when `seal` flushes the folder."""
    with errors_named(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write_fully(fd, data, 0, path)
            os.fsync(fd)
        finally:
            os.close(fd)


def seal(
    folder: Path,
    conversion: Conversion,
    source: ModelSource,
    info: ModelInfo,
    small_files: dict[str, bytes],
    source_record: dict[str, str],
    advance: Callable[[int], None],
) -> str:
    """Completes a work folder: reads the weights back for their checksums, and writes the manifest last.

    Returns the model's id. advance gets the bytes read since its last call. Raises StoreError, also for what is
    no number.
    """
    for name, data in small_files.items():
        write_small_file(folder / name, data)
    shards, dense, ahead, vision, runs = _checksums(folder, conversion, info, advance)
    small_files = {**small_files, CHECKSUMS_FILE: dump_checksums(runs)}
    write_small_file(folder / CHECKSUMS_FILE, small_files[CHECKSUMS_FILE])
    files = [FileEntry(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in small_files.items()]
    entries = sorted([*files, dense], key=lambda entry: entry.file)
    manifest = Manifest(
        source,
        info,
        conversion.moe,
        conversion.layout,
        shards,
        tuple(entries),
        conversion.formats,
        ahead=ahead,
        vision=vision,
    )
    expected = manifest.file_sizes()
    with errors_named(folder):
        for path in folder.iterdir():
            if path.name not in expected:  # left by an earlier attempt, before the source changed
                path.unlink()
    write_small_file(folder / SOURCE_RECORD_FILE, json.dumps(source_record).encode())
    with errors_named(folder):
        sync_folder(folder)
        publish(folder / MANIFEST_FILE, manifest.dumps())
    return model_id(manifest.dumps())


def _checksums(
    folder: Path, conversion: Conversion, info: ModelInfo, advance: Callable[[int], None]
) -> tuple[tuple[ShardEntry, ...], FileEntry, FileEntry | None, FileEntry | None, Sequence[SumRun]]:
    """Returns the entries of all layers, of the dense file, layers ahead and tower, and the sums for checksums.bin."""
    moe, stride = conversion.moe, conversion.layout.stride_bytes
    dense = dense_tensors(folder / DENSE_FILE, conversion.formats.dense)
    spans = [dense_span(folder / DENSE_FILE, conversion.dense_bytes, dense, info)]
    for layer in range(moe.num_layers):
        spans += expert_spans(folder / shard_file(layer), moe.experts_of(layer), conversion.layout)
    if conversion.vision.num_bytes:
        spans.append(vision_span(folder / VISION_FILE, conversion.vision.num_bytes))
    if conversion.ahead.num_bytes:
        spans.append(Span(folder / AHEAD_FILE, 0, conversion.ahead.num_bytes))
    findings: list[Finding] = []
    with closing(check_spans(spans)) as results:
        for span, found in zip(spans, results, strict=True):
            with errors_named(span.path):
                if isinstance(found, OSError):
                    raise found
            if found.fault:
                expert = "" if span is spans[0] else f"expert {span.offset_bytes // stride}: "
                raise StoreError(f"{span.path}: {expert}{found.fault}; pull the model again")
            findings.append(found)
            advance(span.num_bytes)
    sums = [found.sha256 for found in findings]
    dense_entry = FileEntry(DENSE_FILE, conversion.dense_bytes, sums[0])
    ahead = FileEntry(AHEAD_FILE, conversion.ahead.num_bytes, sums.pop()) if conversion.ahead.num_bytes else None
    count = len(sums)  # of what a run reads, and checks as it does
    vision = FileEntry(VISION_FILE, conversion.vision.num_bytes, sums.pop()) if conversion.vision.num_bytes else None
    shards = shard_entries(moe, [stride] * moe.num_layers, sums[1:])
    return shards, dense_entry, ahead, vision, gathered(spans[:count], findings[:count])
