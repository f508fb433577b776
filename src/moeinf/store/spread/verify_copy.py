"""Compares a model's experts on another disk with their checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from moeinf.store.files import fault_of_read
from moeinf.store.library import StoredModel
from moeinf.store.spread.copy_list import Copy
from moeinf.store.spread.file_parts import damaged_units, opened
from moeinf.store.spread.whole import copied_files, copy_paths, strides_of
from moeinf.store.sums.checksums import sums_of
from moeinf.types import SumRun


def copy_faults(copy: Copy, stored: StoredModel, progress: Callable[[int], None]) -> list[str]:
    """A line for each expert there that is not what it was, or for each range of a file that is used in place.

    copy: one that has all bytes. A damaged file is deleted, since the store has it, so that the next `spread` copies it
    again. Raises StoreError where the system refuses to read a file.
    """
    faults = []
    sums = sums_of(stored)[0]
    files = zip(copy_paths(copy, stored), stored.shard_paths, stored.shard_sizes, copied_files(stored), strict=True)
    for number, (path, own, num_bytes, copied) in enumerate(files):
        if copied:
            of_file = [run for run in sums if run.file == own.name]
            found = list(_faults_of(path, num_bytes, of_file, _stride(stored, number), progress))
            faults += found
            if found:
                with suppress(OSError):  # on a disk that is read-only the report alone has to do
                    path.unlink()
    return faults


def _stride(stored: StoredModel, number: int) -> int:
    """From one expert of a file to the next; 0 where they lie in another way."""
    return 0 if stored.manifest.in_place is not None else strides_of(stored)[number]


def _faults_of(
    path: Path, num_bytes: int, sums: list[SumRun], stride: int, progress: Callable[[int], None]
) -> Iterator[str]:
    try:
        with opened(path) as file:
            for start, end in damaged_units(file, num_bytes, sums, progress):
                what = f"expert {start // stride}" if stride else f"{end - start} bytes at {start}"
                yield f"{path}: {what} does not match its checksum"
    except OSError as error:
        yield f"{path}: {fault_of_read(error, path)}"
