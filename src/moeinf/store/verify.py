"""Compares a stored model with the checksums in its manifest, and looks at the scales of its blocks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from moeinf.errors import StoreError
from moeinf.store.dense import dense_tensors, scale_fault
from moeinf.store.files import drop_cached, open_regular, read_fully
from moeinf.store.format import DENSE_FILE, is_quantised
from moeinf.store.library import RECEIPT_FILE, StoredModel
from moeinf.types import FORMAT_BLOCKS, TensorSpec

_CHUNK_BYTES = 4 << 20
_THREADS = 2  # hashing takes a core for 1.8 GB/s; two keep up with a fast disk


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range of a file, hashed as one. tensors: in it, in order, with offsets from its begin."""

    path: Path
    offset_bytes: int
    num_bytes: int
    tensors: Sequence[TensorSpec] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    sha256: str
    fault: str  # the first block whose scale is no number, else ""


def check_spans(spans: Sequence[Span]) -> Generator[Finding | OSError, None, None]:
    """What is found in each span in order, by two threads ahead of the caller; an OSError for one that failed.

    Bytes come from the disk, as far as the kernel can be asked to forget what it has of them.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(_check_span, spans)


def _check_span(span: Span) -> Finding | OSError:
    digest, fault, buffer = hashlib.sha256(), "", memoryview(bytearray(min(_CHUNK_BYTES, span.num_bytes)))
    try:
        fd = open_regular(span.path)
        try:
            drop_cached(fd, span.offset_bytes, span.num_bytes)
            for start, num_bytes, spec in _chunks(span):
                piece = buffer[:num_bytes]
                read_fully(fd, piece, span.offset_bytes + start, span.path)
                digest.update(piece)
                if spec and not fault:
                    fault = scale_fault(spec, piece, (start - spec.offset_bytes) // FORMAT_BLOCKS[spec.dtype][1])
            drop_cached(fd, span.offset_bytes, span.num_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        return error
    return Finding(digest.hexdigest(), fault)


def _chunks(span: Span) -> Iterator[tuple[int, int, TensorSpec | None]]:
    """(start, length, quantised tensor) of what is read at once: whole blocks of one tensor, or bytes between them."""
    end = 0
    for spec in (*(spec for spec in span.tensors if is_quantised(spec.dtype)), None):
        start = spec.offset_bytes if spec else span.num_bytes
        yield from ((at, min(_CHUNK_BYTES, start - at), None) for at in range(end, start, _CHUNK_BYTES))
        if spec is not None:
            step = _CHUNK_BYTES - _CHUNK_BYTES % FORMAT_BLOCKS[spec.dtype][1]
            end = start + spec.num_bytes
            yield from ((at, min(step, end - at), spec) for at in range(start, end, step))


def verify(model: StoredModel, progress: Callable[[int], None] = lambda num_bytes: None) -> list[str]:
    """One line for each fault, naming the shard and the expert, or the file; an empty list means sound.

    progress is called with the bytes done since the last call. A model with faults is no longer taken for up to date
    by the next pull, which then makes it anew. Raises StoreError where the manifest itself is damaged.
    """
    faults: list[str] = []
    spans, sums, labels = _expected(model, faults)
    with closing(check_spans(spans)) as results:
        for span, wanted, label, found in zip(spans, sums, labels, results, strict=True):
            if isinstance(found, OSError):
                faults.append(f"{label}: {found.strerror}")
            else:
                faults += [f"{label} does not match its checksum"] * (found.sha256 != wanted)
                faults += [f"{label}: {found.fault}"] * bool(found.fault)
            progress(span.num_bytes)
    if faults:
        with suppress(OSError):  # in a read-only store the report alone has to do
            (model.path / RECEIPT_FILE).unlink(missing_ok=True)
    return faults


def _expected(model: StoredModel, faults: list[str]) -> tuple[list[Span], list[str], list[str]]:
    """What to hash, with the sum and the words for it; files of a wrong size go to `faults` at once."""
    manifest = model.manifest
    stride = manifest.layout.stride_bytes
    spans, sums, labels = [], [], []
    for shard in manifest.shards:
        if _right_size(model.path / shard.file, shard.num_bytes, faults):
            for expert, wanted in enumerate(shard.sha256):
                spans.append(Span(model.path / shard.file, expert * stride, stride, manifest.layout.tensors))
                sums.append(wanted)
                labels.append(f"{shard.file}: expert {expert}")
    for file in manifest.files:
        if _right_size(model.path / file.file, file.num_bytes, faults):
            tensors = _dense_tensors(model) if file.file == DENSE_FILE else ()
            spans.append(Span(model.path / file.file, 0, file.num_bytes, tensors))
            sums.append(file.sha256)
            labels.append(file.file)
    return spans, sums, labels


def _dense_tensors(model: StoredModel) -> Sequence[TensorSpec]:
    """None where the file's header is damaged, which its checksum tells as well."""
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


def check_sizes(model: StoredModel) -> None:
    """Raises StoreError for the first file that is missing or of a wrong length: cheap, for use before a run."""
    faults: list[str] = []
    for name, num_bytes in model.manifest.file_sizes().items():
        if not _right_size(model.path / name, num_bytes, faults):
            raise StoreError(f"{model.name}: {faults[0]}; check it with `moeinf verify`, then `moeinf pull` it again")
