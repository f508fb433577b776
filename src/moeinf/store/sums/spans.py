"""Reads ranges of files for all their checksums at once: SHA-256, CRC-32C of their units, and what is no number."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from moeinf._native import crc32c, crc32c_units
from moeinf.errors import StoreError
from moeinf.store.dense import dense_tensors, fault_of
from moeinf.store.format import DENSE_FILE, VISION_FILE, is_head, is_quantised, is_table
from moeinf.store.spread.file_parts import OpenParts, Rest, opened
from moeinf.threads import mapped
from moeinf.types import ExpertLayout, ModelInfo, SumRun, TensorSpec, block_of

_CHUNK_BYTES = 4 << 20
_TABLE_UNIT_BYTES = 4096  # of a table: what a disk reads at least, so that its sums take a thousandth of it
_THREADS = 2  # hashing takes a core for 1.8 GB/s; two keep up with a fast disk


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a file, hashed as one. tensors: in it, in order, with offsets from its begin.

    Each tensor, and each range between two, has a CRC-32C of its own; matrices of num_rows rows have one for each row,
    and tables of n-grams one for as many rows as fit into 4 KiB.
    units: by the offset of a tensor, the bytes of its units, which have one each. hashed: SHA-256 is wanted.
    rest: where some of the file's bytes lie in another one.
    """

    path: Path
    offset_bytes: int
    num_bytes: int
    tensors: Sequence[TensorSpec] = ()
    num_rows: int = 0
    units: Mapping[int, int] = field(default_factory=dict)
    hashed: bool = True
    rest: Rest | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    sha256: str
    crc32c: int
    runs: tuple[SumRun, ...]  # of the tensors, and of what is between them
    fault: str  # the first block or element that is no number, else ""


def dense_span(path: Path, num_bytes: int, tensors: Sequence[TensorSpec], info: ModelInfo) -> Span:
    """Returns the span of a whole dense file. A run reads single rows of embeddings, one for each token."""
    return Span(path, 0, num_bytes, tensors, info.vocab_size)


def vision_span(path: Path, num_bytes: int) -> Span:
    """Returns the span of the file of a tower; without tensors where its header is damaged, as its sum will tell."""
    tensors: Sequence[TensorSpec] = ()
    with suppress(StoreError):
        tensors = dense_tensors(path)
    return Span(path, 0, num_bytes, tensors)


def expert_spans(path: Path, num_experts: int, layout: ExpertLayout, rest: Rest | None = None) -> list[Span]:
    stride = layout.stride_bytes
    return [Span(path, expert * stride, stride, layout.tensors, rest=rest) for expert in range(num_experts)]


def check_spans(spans: Sequence[Span]) -> Generator[Finding | OSError, None, None]:
    """Yields what is found in each span, in order; an OSError for one that failed. Two threads read ahead.

    Bytes come from the disk, as far as the kernel can be asked to forget what it has of them.
    """
    yield from mapped(_check_span, spans, _THREADS)


def gathered(spans: Sequence[Span], found: Sequence[Finding]) -> tuple[SumRun, ...]:
    """Returns the content of checksums.bin: runs of the dense file and the tower's, one of each shard, by expert."""
    runs: list[SumRun] = []
    for path, group in groupby(zip(spans, found, strict=True), key=lambda pair: pair[0].path):
        pairs = list(group)
        if path.name in (DENSE_FILE, VISION_FILE):
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
        with opened(span.path, span.rest) as file:
            file.drop_cached(span.offset_bytes, span.num_bytes)
            for start, num_bytes, spec in _parts(span):
                _check_part(file, span, start, num_bytes, spec, buffer, sums)
            file.drop_cached(span.offset_bytes, span.num_bytes)
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
    file: OpenParts, span: Span, start: int, num_bytes: int, spec: TensorSpec | None, buffer: memoryview, sums: _Sums
) -> None:
    """Reads a part of a span in pieces of whole blocks or units, and adds them to the sums."""
    unit_bytes, block_bytes = _unit_bytes(span, start, num_bytes, spec), block_of(spec.dtype)[1] if spec else 1
    small = unit_bytes <= _CHUNK_BYTES
    step = _CHUNK_BYTES - _CHUNK_BYTES % (unit_bytes if small else block_bytes)
    of_units, of_part = [], 0
    at = start
    while at < start + num_bytes:
        unit_end = at + unit_bytes - (at - start) % unit_bytes  # of a unit that takes several pieces
        piece = buffer[: min(step, start + num_bytes - at, step if small else unit_end - at)]
        file.read(piece, span.offset_bytes + at)
        if span.hashed:
            sums.digest.update(piece)
            sums.crc32c = crc32c(piece, sums.crc32c)
        if spec and not sums.fault:
            sums.fault = fault_of(spec, piece, (at - start) // block_bytes)
        at += len(piece)
        if small:
            of_units.append(crc32c_units(piece, unit_bytes))
        else:
            of_part = crc32c(piece, of_part)
            if at in (unit_end, start + num_bytes):
                of_units.append(np.array([of_part], np.uint32))
                of_part = 0
    values = np.concatenate(of_units)
    sums.runs.append(SumRun(span.path.name, span.offset_bytes + start, num_bytes, unit_bytes, values))


def _unit_bytes(span: Span, start: int, num_bytes: int, spec: TensorSpec | None) -> int:
    """Returns the bytes of what has a CRC-32C of its own: all of a part, a row, or what `units` says."""
    if spec is not None and start in span.units:
        return span.units[start]
    if spec is not None and is_table(spec.name):
        row_bytes = num_bytes // spec.shape[0]
        return min(num_bytes, max(1, _TABLE_UNIT_BYTES // row_bytes) * row_bytes)
    rows = spec is not None and len(spec.shape) == 2 and spec.shape[0] == span.num_rows
    # Of a quantised matrix that makes logits no rows are looked up: the embedding lies beside it.
    whole = spec is not None and is_quantised(spec.dtype) and is_head(spec.name)
    if spec is None or not rows or whole or num_bytes > span.num_rows * _CHUNK_BYTES:
        return num_bytes
    return num_bytes // span.num_rows
