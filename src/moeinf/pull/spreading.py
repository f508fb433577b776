"""Lays the experts of a stored model on a second disk, whole or divided between both, and brings them back.

A file comes to be under another name, is compared with its checksums while it is copied, and takes its own name when
all of it is on the disk. A divided model is read as the list of copies says: that changes when all files of the second
disk are there, and only then does the store give up what lies there. So a kill at any moment leaves a model that runs,
and the same command goes on from there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.errors import DiskSpaceError, StoreError, UsageError
from moeinf.runtime.io.read_rate import read_rate
from moeinf.store.files import errors_named, make_folders, write_fully
from moeinf.store.library import Library, StoredModel
from moeinf.store.processes.leftovers import scratch_file
from moeinf.store.processes.locks import TakenError, take
from moeinf.store.spread.copy_list import Copy, CopyList
from moeinf.store.spread.file_parts import Kept, copy_file, opened
from moeinf.store.spread.whole import copied_files, copies_of, copy_paths, divided_copy, fault_of, rests_of, strides_of
from moeinf.store.sums.checksums import sums_of
from moeinf.text.quantities import shortage_text, size_text
from moeinf.types import BLOCK_ALIGN_BYTES

Progress = Callable[[int], None]  # bytes since the last call
Note = Callable[[str], None]
_SAMPLE_BYTES: Final = 256 << 20  # of the experts, that rates are measured with
_SAMPLE_READ_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 4 << 20


def spread(
    stored: StoredModel, folder: Path, progress: Progress = lambda num_bytes: None, note: Note = lambda line: None
) -> Copy:
    """Copies all experts to a folder, or those that are missing there. They stay in the store, too.

    Raises StoreError, DiskSpaceError, and UsageError where the model is divided.
    """
    if (divided := divided_copy(stored)) is not None:
        raise UsageError(f"{stored.name} is divided between the store and {divided.folder}; {_gather_first(stored)}")
    copy = Copy(str(folder), stored.id, stored.name)
    with _alone(copy, stored, note):
        missing = [
            (number, path)
            for number, (path, has) in enumerate(zip(copy_paths(copy, stored), copied_files(stored), strict=True))
            if has and not _is_there(path, stored.shard_sizes[number])
        ]
        _check_room(folder, sum(stored.shard_sizes[number] for number, _ in missing))
        for number, path in missing:
            _copy(stored, number, path, None, progress)
        _delete_others(copy, stored)
    return copy


def divide(
    stored: StoredModel, folder: Path, progress: Progress = lambda num_bytes: None, note: Note = lambda line: None
) -> Copy:
    """Leaves a part of each expert in the store, and lays the rest in a folder: no byte is kept twice.

    The disks get parts in proportion to their rates, which are measured now. Raises as `spread` does, and UsageError
    for weights in place.
    """
    if stored.manifest.in_place is not None:
        raise UsageError(
            f"{stored.name} is used as it lies in GGUF files, which stay as they are; leave --divide out, or store it "
            "with `moeinf pull --repack`"
        )
    for each in copies_of(stored):
        if not each.is_in(folder):
            raise UsageError(f"experts of {stored.name} lie in {each.folder} already; {_gather_first(stored)}")
    known, strides = divided_copy(stored), strides_of(stored)
    blank = known or Copy(str(folder), stored.id, stored.name)
    with _alone(blank, stored, note):
        share = 0.0 if known else _share_of_store(stored, folder, note)
        copy = known or replace(blank, first_bytes=tuple(_first_bytes(stride, share) for stride in strides))
        missing = [
            (number, path)
            for number, path in enumerate(copy_paths(copy, stored))
            if not _is_there(path, stored.shard_sizes[number])
        ]
        if known and missing:
            raise StoreError(fault_of(known, stored))
        rest = [1 - first / stride for first, stride in zip(copy.first_bytes, strides, strict=True)]
        _check_room(folder, int(sum(rest[number] * stored.shard_sizes[number] for number, _ in missing)))
        for number, path in missing:
            _copy(stored, number, path, Kept(copy.first_bytes[number], strides[number], strides[number]), progress)
        with Library(stored.home).lock(), errors_named(stored.home):
            CopyList(stored.home).put(copy)
        for number, path in enumerate(stored.shard_paths):
            kept = int((1 - rest[number]) * stored.shard_sizes[number])
            if path.stat().st_blocks * 512 > kept + BLOCK_ALIGN_BYTES * len(stored.manifest.shards[number].sha256):
                _copy(stored, number, path, Kept(0, copy.first_bytes[number], strides[number]), lambda num_bytes: None)
        _delete_others(copy, stored)
    return copy


def gather(stored: StoredModel, progress: Progress = lambda num_bytes: None, note: Note = lambda line: None) -> int:
    """Brings what lies elsewhere back into the store, and deletes it there: the bytes that this freed.

    A folder that cannot be reached is forgotten, of which `note` is told. Raises StoreError, DiskSpaceError.
    """
    freed = 0
    for copy in copies_of(stored):
        if copy.divided:
            if fault := fault_of(copy, stored):
                raise StoreError(fault)
            with _alone(copy, stored, lambda line: None):
                _check_room(stored.path, max(stored.shard_sizes))
                for number, path in enumerate(stored.shard_paths):
                    _copy(stored, number, path, None, progress)
                with Library(stored.home).lock(), errors_named(stored.home):
                    CopyList(stored.home).undivide(stored.id)
        with Library(stored.home).lock(), errors_named(stored.home):
            try:
                freed += copy.discard()
            except StoreError as error:
                note(f"files may be left in {copy.path}: {error}")
            CopyList(stored.home).forget(copy)
    return freed


def same_disk(one: Path, other: Path) -> bool:
    """Whether two folders lie on one disk, as far as the system tells: partitions of a disk are one disk."""
    with suppress(OSError):
        devices = [os.stat(folder).st_dev for folder in (one, other)]
        return devices[0] == devices[1] or _whole_disk(devices[0]) == _whole_disk(devices[1])
    return False


def _whole_disk(device: int) -> Path:
    """The system's folder of the disk that a block device is, or is a part of. Raises OSError where it has none."""
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    return folder.parent if (folder / "partition").exists() else folder


def _gather_first(stored: StoredModel) -> str:
    return f"`moeinf spread {stored.name} --gather` brings them back first"


def _is_there(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except FileNotFoundError:
        return False


def _copy(stored: StoredModel, number: int, target: Path, kept: Kept | None, progress: Progress) -> None:
    """Writes a file of experts, of which every byte is read, from wherever it lies."""
    sums = [run for run in sums_of(stored)[0] if run.file == stored.shard_paths[number].name]
    source = stored.shard_paths[number]
    with opened(source, rests_of(stored)[number]) as file:
        fault = copy_file(file, target, stored.shard_sizes[number], sums, kept, progress)
    if fault:
        raise StoreError(f"{stored.name}: {source}: {fault}; {stored.remedy}")


def _first_bytes(stride: int, share: float) -> int:
    """What the store has of a block: whole blocks of the disk, at least one of them on either disk."""
    blocks = stride // BLOCK_ALIGN_BYTES
    if blocks < 2:
        raise UsageError(f"experts of {stride} bytes are too small to divide; leave --divide out")
    return min(max(round(blocks * share), 1), blocks - 1) * BLOCK_ALIGN_BYTES


def _share_of_store(stored: StoredModel, folder: Path, note: Note) -> float:
    """Of the rate of both disks together, the part that the store's has."""
    config, path = RuntimeConfig(), stored.shard_paths[0]
    size = min(_SAMPLE_BYTES, stored.shard_sizes[0])
    with scratch_file(folder) as (fd, sample), opened(path) as file:
        for at in range(0, size, _PIECE_BYTES):
            piece = memoryview(bytearray(min(_PIECE_BYTES, size - at)))
            file.read(piece, at)
            write_fully(fd, piece, at, folder)
        os.fsync(fd)
        own = read_rate(stored.shard_paths, stored.shard_sizes, _SAMPLE_READ_BYTES, config, limit_s=1.0)
        other = read_rate([sample], [size], _SAMPLE_READ_BYTES, config, limit_s=1.0)
    note(f"the store's disk reads {size_text(own)}/s, that of {folder} {size_text(other)}/s")
    return own / (own + other)


@contextmanager
def _alone(copy: Copy, stored: StoredModel, note: Note) -> Iterator[None]:
    """Takes the lock of the copy, and has it in the store's list before anything of it is written."""
    folder = Path(copy.folder)
    if not folder.is_dir():
        raise StoreError(f"{folder} is no folder that is there; make it, or mount its disk")
    if same_disk(stored.path, folder):
        note(
            f"{folder} and the store are on one disk, which reads no faster for it; name a folder on another disk, or "
            f"`moeinf spread {stored.name} --gather` undoes this"
        )
    with _errors_of(folder):
        make_folders(copy.path)
        try:
            lock = take(copy.path.with_suffix(".lock"))
        except TakenError as error:
            raise StoreError(f"experts of {stored.name} are being copied to {folder} ({error}); wait for it") from error
        try:
            for old in copy.path.glob(".*.tmp"):  # of a process that was killed
                old.unlink()
            with Library(stored.home).lock(), errors_named(stored.home):
                CopyList(stored.home).put(copy)
            yield
        except BaseException:
            _forget_nothing(copy, stored)
            raise
        finally:
            lock.release(remove=True)
            with suppress(OSError):  # experts lie there
                copy.path.parent.rmdir()


def _forget_nothing(copy: Copy, stored: StoredModel) -> None:
    """Takes a copy of which no file came to be out of the store's list again."""
    with suppress(OSError, StoreError):
        if not copy.divided and not any(copy.path.glob("[!.]*")):
            with Library(stored.home).lock():
                copy.discard()
                CopyList(stored.home).forget(copy)


@contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskSpaceError(f"{where}: {error.strerror}; free some space, and repeat the command") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StoreError(
                f"{where}: {error.strerror}; name a folder on another disk that you can write to"
            ) from error
        raise StoreError(f"{where}: {error.strerror}; look at the disk and its file system") from error


def _check_room(folder: Path, wanted_bytes: int) -> None:
    """Raises DiskSpaceError where the folder's disk cannot hold so much more."""
    free = shutil.disk_usage(folder).free
    if wanted_bytes > free:
        raise DiskSpaceError(
            f"not enough disk space in {folder}: {shortage_text(wanted_bytes, free)}; free some, or name a folder on "
            "another disk"
        )


def _delete_others(copy: Copy, stored: StoredModel) -> None:
    """Deletes files of the copy's folder that are none of its own: of another way to spread the model."""
    own = {path.name for path in copy_paths(copy, stored)}
    for path in copy.path.iterdir():
        if path.name not in own:
            path.unlink()
