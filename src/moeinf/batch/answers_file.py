"""The file of a batch's answers: each line is on the disk before the next begins, and a kill loses none.

Until all requests are answered the file stands beside its place, as NAME.part; so what is in its place is whole.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from moeinf.errors import UsageError
from moeinf.store.files import errors_named, sync_folder, write_fully
from moeinf.store.processes.locks import TakenError, take

BEGINNING: Final = b'{"id":"batch_req_'  # of each line


class _Id(msgspec.Struct):
    id: str


class AnswersFile:
    """finished: the ids of the answers that it had when it was opened, by an earlier run of the same batch."""

    def __init__(self, path: Path, fd: int, finished: frozenset[str], end: int) -> None:
        """See `answers_file`."""
        self.finished = finished
        self._path, self._fd, self._end = path, fd, end

    @property
    def part(self) -> Path:
        return _part(self._path)

    def add(self, line: bytes) -> None:
        """Writes a line, with the newline at its end, for good. Raises UsageError and DiskSpaceError."""
        with errors_named(self.part, UsageError):
            write_fully(self._fd, line, self._end, self.part)
            os.fdatasync(self._fd)
        self._end += len(line)

    def complete(self) -> None:
        """Puts the file in its place: every request has its answer. Raises UsageError."""
        with errors_named(self._path, UsageError):
            os.fsync(self._fd)
            os.rename(self.part, self._path)
            sync_folder(self._path.parent)


@contextmanager
def answers_file(path: Path, ids: Collection[str]) -> Iterator[AnswersFile]:
    """Opens the file for the answers to a batch with these ids; a line that was torn by a kill is cut off.

    Raises UsageError for a file that holds anything else than answers of this batch, or that another run is writing.
    """
    part = _part(path)
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}; make it first")
    with errors_named(path, UsageError):
        if path.exists() and part.exists():
            raise UsageError(f"{path} and {part} both have answers; move one of them away")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"--out {path} is no file; name one, or - for standard output")
        try:
            lock = take(path.with_name(f".{path.name}.lock"))
        except TakenError as error:
            raise UsageError(f"--out {path}: another run is writing it ({error}); wait for its end") from None
        try:
            there = path if path.exists() else part
            finished, end = _checked(there, frozenset(ids)) if there.exists() else (frozenset[str](), 0)
            if there == path and there.exists():
                os.rename(path, part)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, end)
                os.fsync(fd)
                sync_folder(path.parent)
                yield AnswersFile(path, fd, finished, end)
            finally:
                os.close(fd)
        finally:
            lock.release(remove=True)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _checked(path: Path, ids: Collection[str]) -> tuple[frozenset[str], int]:
    """The ids of the whole lines, and where these end. Raises UsageError."""
    found, end = set[str](), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") and line[: len(BEGINNING)] == BEGINNING[: len(line)]:
                break  # torn
            try:
                identity = msgspec.json.decode(line, type=_Id).id
            except msgspec.DecodeError:
                raise UsageError(f"{path}, line {number}, is no answer of a batch; choose another --out") from None
            if identity not in ids:
                raise UsageError(
                    f"{path} has answers to other requests, of another model or with other options; choose another "
                    "--out, or repeat the command that began it"
                )
            if identity in found:
                raise UsageError(f"{path}, line {number}: this request was answered before; choose another --out")
            found.add(identity)
            end += len(line)
    return frozenset(found), end
