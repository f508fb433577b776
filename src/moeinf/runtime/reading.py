"""Opens the reader that the configuration asks for, and reads whole files with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf._native import Arena, NativeReader, ReadFailure
from moeinf.config import RuntimeConfig
from moeinf.errors import StoreError
from moeinf.runtime.pure_reader import PureReader
from moeinf.types import BLOCK_ALIGN_BYTES, Reader

_CHUNK_BYTES: Final = 4 << 20  # of a whole file: large enough for the disk's full rate


def open_reader(paths: Sequence[Path], sizes: Sequence[int], arena: Arena, config: RuntimeConfig) -> Reader:
    """A reader of `paths` into `arena`. Raises StoreError for a file that is missing or not of its size."""
    names = [str(path) for path in paths]
    try:
        if config.reader == "pure":
            return PureReader(names, list(sizes), arena)
        return NativeReader(names, list(sizes), arena, direct=config.direct_io, queue_depth=config.queue_depth)
    except OSError as error:
        raise StoreError(f"{error}; check the store with `moeinf verify`, then `moeinf pull` it again") from error


def read_file(path: Path, num_bytes: int, config: RuntimeConfig, progress: Callable[[int, int], None]
              ) -> npt.NDArray[np.uint8]:
    """The whole of a file, in memory of its own that is page-aligned. Raises StoreError."""
    arena = Arena(-(-num_bytes // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES)
    memory = arena.array()[:num_bytes]
    whole = num_bytes // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
    reader = open_reader([path], [num_bytes], arena, config)
    try:
        _read_blocks(reader, whole, progress, num_bytes)
    except ReadFailure as failure:
        raise StoreError(f"{failure}; check the store with `moeinf verify`, then `moeinf pull` it again") from failure
    finally:
        reader.close()
    with path.open("rb") as file:  # O_DIRECT reads whole blocks only
        file.seek(whole)
        tail = file.read(num_bytes - whole)
    if len(tail) != num_bytes - whole:
        raise StoreError(f"{path} ends early; `moeinf pull` it again")
    memory[whole:] = np.frombuffer(tail, np.uint8)
    progress(num_bytes, num_bytes)
    return memory


def _read_blocks(reader: Reader, end: int, progress: Callable[[int, int], None], total: int) -> None:
    chunks = np.arange(0, end - end % _CHUNK_BYTES, _CHUNK_BYTES)
    rest = np.arange(end - end % _CHUNK_BYTES, end, BLOCK_ALIGN_BYTES)
    for offsets, size in ((chunks, _CHUNK_BYTES), (rest, BLOCK_ALIGN_BYTES)):
        if not len(offsets):
            continue
        zeros = np.zeros(len(offsets), np.int64)
        reader.submit(offsets, zeros, offsets, offsets, size, np.full(len(offsets), np.inf))
        waiting = offsets
        while len(waiting):
            waiting = np.setdiff1d(waiting, reader.wait_any(waiting))
            progress(int(offsets[-1]) + size - len(waiting) * size, total)

