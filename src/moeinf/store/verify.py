"""Compares a stored model with the checksums in its manifest, and looks at the scales of its blocks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from moeinf._native import crc32c, crc32c_units
from moeinf.errors import StoreError
from moeinf.store.checksums import CHECKSUMS_FILE, dump_checksums
from moeinf.store.dense import dense_tensors, scale_fault
from moeinf.store.files import drop_cached, errors_named, open_regular, publish, read_fully, read_small
from moeinf.store.format import DENSE_FILE, is_quantised
from moeinf.store.library import SOURCE_RECORD_FILE, StoredModel
from moeinf.types import FORMAT_BLOCKS, ExpertLayout, ModelInfo, SumRun, TensorSpec

_CHUNK_BYTES = 4 << 20
_THREADS = 2  # hashing takes a core for 1.8 GB/s; two keep up with a fast disk


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a file, hashed as one. tensors: in it, in order, with offsets from its begin.

    Each tensor, and each range between two, has a CRC-32C of its own; matrices of num_rows rows have one for each row.
    """

    path: Path
    offset_bytes: int
    num_bytes: int
    tensors: Sequence[TensorSpec] = ()
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    sha256: str
    crc32c: int
    runs: tuple[SumRun, ...]  # of the tensors, and of what is between them
    fault: str  # the first block whose scale is no number, else ""


def dense_span(path: Path, num_bytes: int, tensors: Sequence[TensorSpec], info: ModelInfo) -> Span:
    """Returns the span of a whole dense file. A run reads single rows of embeddings, one for each token."""
    return Span(path, 0, num_bytes, tensors, info.vocab_size)


def expert_spans(path: Path, num_experts: int, layout: ExpertLayout) -> list[Span]:
    tensors = [spec for spec in layout.tensors if is_quantised(spec.dtype)]
    return [Span(path, expert * layout.stride_bytes, layout.stride_bytes, tensors) for expert in range(num_experts)]


def check_spans(spans: Sequence[Span]) -> Generator[Finding | OSError, None, None]:
    """Yields what is found in each span, in order; an OSError for one that failed. Two threads read ahead.

    Bytes come from the disk, as far as the kernel can be asked to forget what it has of them.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(_check_span, spans)


def gathered(spans: Sequence[Span], found: Sequence[Finding]) -> tuple[SumRun, ...]:
    """Returns the content of checksums.bin: the runs of the dense file, and one run of each shard, by expert."""
    runs: list[SumRun] = []
    for path, group in groupby(zip(spans, found, strict=True), key=lambda pair: pair[0].path):
        pairs = list(group)
        if path.name == DENSE_FILE:
            runs += pairs[0][1].runs
        else:
            stride = pairs[0][0].num_bytes
            sums = np.array([finding.crc32c for _, finding in pairs], np.uint32)
            runs.append(SumRun(path.name, 0, len(pairs) * stride, stride, sums))
    return tuple(sorted(runs, key=lambda run: (run.file, run.start)))


@dataclass(slots=True)
class _Sums:
    """The checksums that are computed while a span is read."""

    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    crc32c: int = 0
    runs: list[SumRun] = field(default_factory=list)
    fault: str = ""


def _check_span(span: Span) -> Finding | OSError:
    sums, buffer = _Sums(), memoryview(bytearray(min(_CHUNK_BYTES, span.num_bytes)))
    try:
        fd = open_regular(span.path)
        try:
            drop_cached(fd, span.offset_bytes, span.num_bytes)
            for start, num_bytes, spec in _parts(span):
                _check_part(fd, span, start, num_bytes, spec, buffer, sums)
            drop_cached(fd, span.offset_bytes, span.num_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        return error
    return Finding(sums.digest.hexdigest(), sums.crc32c, tuple(sums.runs), sums.fault)


def _parts(span: Span) -> Iterator[tuple[int, int, TensorSpec | None]]:
    """Yields (start, length, tensor) of each tensor in the span, and of the bytes before, between and behind them."""
    end = 0
    for spec in (*span.tensors, None):
        start = spec.offset_bytes if spec else span.num_bytes
        if start > end:
            yield end, start - end, None
        if spec is not None and spec.num_bytes:
            yield start, spec.num_bytes, spec
            end = start + spec.num_bytes


def _check_part(
    fd: int, span: Span, start: int, num_bytes: int, spec: TensorSpec | None, buffer: memoryview, sums: _Sums
) -> None:
    """Reads a part of a span in pieces of whole blocks or rows, and adds them to the sums."""
    unit_bytes, block_bytes = num_bytes, FORMAT_BLOCKS[spec.dtype][1] if spec else 1
    if (
        spec
        and len(spec.shape) == 2
        and spec.shape[0] == span.num_rows
        and not is_quantised(spec.dtype)
        and num_bytes <= span.num_rows * _CHUNK_BYTES
    ):
        unit_bytes = block_bytes = num_bytes // span.num_rows
    step = _CHUNK_BYTES - _CHUNK_BYTES % block_bytes
    of_units, of_part = [], 0
    for at in range(start, start + num_bytes, step):
        piece = buffer[: min(step, start + num_bytes - at)]
        read_fully(fd, piece, span.offset_bytes + at, span.path)
        sums.digest.update(piece)
        sums.crc32c = crc32c(piece, sums.crc32c)
        of_part = crc32c(piece, of_part)
        if unit_bytes < num_bytes:
            of_units.append(crc32c_units(piece, unit_bytes))
        if spec and not sums.fault:
            sums.fault = scale_fault(spec, piece, (at - start) // block_bytes)
    values = np.concatenate(of_units) if of_units else np.array([of_part], np.uint32)
    sums.runs.append(SumRun(span.path.name, span.offset_bytes + start, num_bytes, unit_bytes, values))


def verify(
    model: StoredModel,
    progress: Callable[[int], None] = lambda num_bytes: None,
    note: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Returns a line for each fault, naming the shard and the expert, or the file. An empty list means sound.

    progress is called with the bytes done since the last call. A model with faults is no longer taken for up to date
    by the next pull, which then makes it anew. A sound one that has no checksums.bin is given it, of which `note` is
    told. Raises StoreError where the manifest itself is damaged.
    """
    faults: list[str] = []
    sound: list[tuple[Span, Finding]] = []
    spans, sums, labels = _expected(model, faults)
    with closing(check_spans(spans)) as results:
        for span, wanted, label, found in zip(spans, sums, labels, results, strict=True):
            if isinstance(found, OSError):
                faults.append(f"{label}: {found.strerror}")
            else:
                faults += [f"{label} does not match its checksum"] * (found.sha256 != wanted)
                faults += [f"{label}: {found.fault}"] * bool(found.fault)
                sound.append((span, found))
            progress(span.num_bytes)
    if not faults:
        faults += _compare_sums(model, sound, note)
    if faults:
        with suppress(OSError):  # in a read-only store the report alone has to do
            (model.path / SOURCE_RECORD_FILE).unlink(missing_ok=True)
    return faults


def _compare_sums(model: StoredModel, sound: Sequence[tuple[Span, Finding]], note: Callable[[str], None]) -> list[str]:
    """Compares checksums.bin with what was found. Where the manifest does not list it, it is written."""
    path = model.path / CHECKSUMS_FILE
    weights = [pair for pair in sound if pair[0].path.name in {s.file for s in model.manifest.shards} | {DENSE_FILE}]
    data = dump_checksums(gathered([span for span, _ in weights], [found for _, found in weights]))
    with suppress(OSError):
        if read_small(path) == data:
            return []
    if path.name in model.manifest.file_sizes():
        return [f"{path.name} does not agree with the weights"]
    try:
        publish(path, data)
        note(f"added {path.name}: from now on, the weights of {model.name} are checked while they are read")
    except OSError as error:
        note(f"{path.name} could not be added ({error.strerror}): the weights are not checked while they are read")
    return []


def _expected(model: StoredModel, faults: list[str]) -> tuple[list[Span], list[str], list[str]]:
    """Returns what to hash, with the sum and the words for it. Files of a wrong size go to `faults` at once."""
    manifest = model.manifest
    spans, sums, labels = list[Span](), list[str](), list[str]()
    for shard in manifest.shards:
        if _right_size(model.path / shard.file, shard.num_bytes, faults):
            spans += expert_spans(model.path / shard.file, len(shard.sha256), manifest.layout)
            sums += shard.sha256
            labels += [f"{shard.file}: expert {expert}" for expert in range(len(shard.sha256))]
    for file in manifest.files:
        path = model.path / file.file
        if _right_size(path, file.num_bytes, faults):
            dense = file.file == DENSE_FILE
            spans.append(
                dense_span(path, file.num_bytes, _dense_tensors(model), manifest.info)
                if dense
                else Span(path, 0, file.num_bytes)
            )
            sums.append(file.sha256)
            labels.append(file.file)
    return spans, sums, labels


def _dense_tensors(model: StoredModel) -> Sequence[TensorSpec]:
    """Returns the tensors of the dense file; none where its header is damaged, as its checksum will tell."""
    with suppress(StoreError):
        return dense_tensors(model.dense_path, model.manifest.dense_formats)
    return ()


def _right_size(path: Path, num_bytes: int, faults: list[str]) -> bool:
    try:
        found = path.stat().st_size
    except OSError as error:
        faults.append(f"{path.name}: {error.strerror}")
        return False
    if found != num_bytes:
        faults.append(f"{path.name} is {found} bytes long, not {num_bytes}")
    return found == num_bytes


def check_files(model: StoredModel) -> None:
    """Raises StoreError for the first file that is missing or of a wrong length, or small and not what it was.

    For use before a run: it takes milliseconds. Weights are held against their checksums when they are read.
    """
    faults: list[str] = []
    for name, num_bytes in model.manifest.file_sizes().items():
        if not _right_size(model.path / name, num_bytes, faults):
            raise StoreError(f"{model.name}: {faults[0]}; {model.remedy}")
    for file in model.manifest.files:
        path = model.path / file.file
        if file.file != DENSE_FILE:
            with errors_named(path):
                found = hashlib.sha256(read_small(path)).hexdigest()
            if found != file.sha256:
                raise StoreError(f"{model.name}: {path} does not match its checksum; {model.remedy}")
