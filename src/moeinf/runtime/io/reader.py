"""Opens the reader that the configuration asks for, and reads whole files with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf._native import Arena, NativeReader, PageTaker, ReadFailure
from moeinf.config import RuntimeConfig
from moeinf.errors import REMEDIES, UNSUPPORTED, StoreError, is_of_content
from moeinf.runtime.io.pages import LEAST_BYTES
from moeinf.runtime.io.python_reader import PureReader
from moeinf.runtime.io.reader_protocol import NO_OTHERS, DiskReader, OnWait, OtherDisks, Reader
from moeinf.types import BLOCK_ALIGN_BYTES, ByteArray, IntArray, SumRun

_DAMAGED: Final = "check the store with `moeinf verify`, then `moeinf pull` it again"
_REFUSED: Final = (
    "the system refuses to read it, which `moeinf pull` does not mend: look at the disk and its file system, or try "
    "--no-direct-io"
)
CHUNK_BYTES: Final = 4 << 20  # of a whole file: large enough for the disk's full rate


def open_reader(
    paths: Sequence[Path],
    sizes: Sequence[int],
    arena: Arena,
    config: RuntimeConfig,
    sums: Sequence[SumRun] = (),
    on_wait: OnWait | None = None,
    others: OtherDisks = NO_OTHERS,
) -> DiskReader:
    """Opens a reader of `paths` into `arena`, which compares units of `sums` when they are read: once, or always.

    others: where the same files lie on other disks, from which they are read as well.
    Raises StoreError for a file that is missing or not of its size, and where the system lacks threads or descriptors.
    """
    names, numbers = [str(path) for path in paths], {path.name: number for number, path in enumerate(paths)}
    try:
        reader: PureReader | NativeReader
        if config.reading.reader == "pure":
            reader = PureReader(names, list(sizes), arena, on_wait=on_wait, others=others)
        else:
            reader = NativeReader(
                [*names, *(str(path) for disk in others.paths for path in disk)],
                list(sizes),
                arena,
                direct=config.reading.direct_io,
                queue_depth=config.reading.queue_depth,
                on_wait=on_wait,
                disks=1 + len(others.paths),
                cuts=list(others.cuts),
            )
    except OSError as error:
        raise _unopened(error) from error
    for run in sums:
        offsets = run.start + run.unit_bytes * np.arange(run.num_units)
        files = np.full(run.num_units, numbers[run.file])
        reader.expect(files, offsets, run.unit_bytes, run.sums, always=config.reading.verify_reads)
    return reader


def read_file(
    path: Path,
    num_bytes: int,
    config: RuntimeConfig,
    progress: Callable[[int, int], None],
    left_out: Sequence[tuple[int, int]] = (),
    on_wait: OnWait | None = None,
) -> npt.NDArray[np.uint8]:
    """Reads the whole of a file into page-aligned memory of its own. Raises StoreError.

    left_out: ranges (start, end) that are not needed: blocks inside them are not read and take no memory.
    progress(bytes done, bytes in all) counts what is read.
    """
    arena = Arena(-(-num_bytes // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES)
    memory = arena.array()[:num_bytes]
    whole = num_bytes // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
    reader = open_reader([path], [num_bytes], arena, config, on_wait=on_wait)
    try:
        _read_blocks(reader, memory[:whole], left_out, progress)
    except ReadFailure as failure:
        raise unreadable(failure) from failure
    finally:
        reader.close()
    memory[whole:] = read_tail(path, whole, num_bytes)
    return memory


def read_tail(path: Path, start: int, end: int) -> ByteArray:
    """Reads what is behind the last whole block, which O_DIRECT cannot. Raises StoreError."""
    tail = b""
    try:
        with path.open("rb", buffering=0) as file:
            while piece := os.pread(file.fileno(), end - start - len(tail), start + len(tail)):
                tail += piece
    except OSError as error:
        raise _unopened(error) from error
    if len(tail) != end - start:
        raise StoreError(f"{path} ends early; {_DAMAGED}")
    return np.frombuffer(tail, np.uint8)


def _unopened(error: OSError) -> StoreError:
    said = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
    return StoreError(f"{said}; {remedy_of_read(error)}")


def unreadable(failure: ReadFailure) -> StoreError:
    return StoreError(f"{failure}; {remedy_of_read(failure)}")


def remedy_of_read(error: OSError, damaged: str = _DAMAGED) -> str:
    """What can be done about a file that cannot be read. damaged: where its content is not what was written."""
    if is_of_content(error):
        return damaged
    return _REFUSED if error.errno in UNSUPPORTED else REMEDIES.get(error.errno or 0, _REFUSED)


def _read_blocks(
    reader: Reader, memory: ByteArray, left_out: Sequence[tuple[int, int]], progress: Callable[[int, int], None]
) -> None:
    end = len(memory)
    chunks = np.arange(0, end - end % CHUNK_BYTES, CHUNK_BYTES)
    rest = np.arange(end - end % CHUNK_BYTES, end, BLOCK_ALIGN_BYTES)
    steps = [
        (_needed(offsets, size, left_out), size) for offsets, size in ((chunks, CHUNK_BYTES), (rest, BLOCK_ALIGN_BYTES))
    ]
    needed, pages = steps[0][0].tolist(), PageTaker(memory)
    if len(needed) * CHUNK_BYTES > LEAST_BYTES:
        for at in needed:
            pages.take(at, at + CHUNK_BYTES)
    try:
        _read_steps(reader, steps, progress)
    finally:
        pages.drop(0)


def _read_steps(reader: Reader, steps: Sequence[tuple[IntArray, int]], progress: Callable[[int, int], None]) -> None:
    """Carries out `steps`, each the offsets of reads and the bytes of each of them, one after the other."""
    total, done = sum(len(offsets) * size for offsets, size in steps), 0
    progress(0, total)
    for offsets, size in steps:
        if not len(offsets):
            continue
        zeros = np.zeros(len(offsets), np.int64)
        reader.submit(offsets, zeros, offsets, offsets, size, np.full(len(offsets), np.inf))
        waiting = offsets
        while len(waiting):
            left = np.setdiff1d(waiting, reader.wait_any(waiting))
            done += (len(waiting) - len(left)) * size
            waiting = left
            progress(done, total)


def _needed(offsets: IntArray, size: int, left_out: Sequence[tuple[int, int]]) -> IntArray:
    keep = np.ones(len(offsets), np.bool_)
    for start, end in left_out:
        keep &= ~((offsets >= start) & (offsets + size <= end))
    return offsets[keep]
