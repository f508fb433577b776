"""The file of a batch's answers: each line is on the disk before the next begins, and a kill loses none.

Until all requests are answered the file stands beside its place, as NAME.part; so what is in its place is whole.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from moeinf.errors import UsageError
from moeinf.store.files import errors_named, sync_folder, write_fully
from moeinf.store.processes.locks import TakenError, take

BEGINNING: Final = b'{"id":"batch_req_'  # of each line


class _Response(msgspec.Struct):
    status_code: int = 200


class _Line(msgspec.Struct):
    id: str
    response: _Response | None = None
    error: dict[str, object] | None = None

    @property
    def is_fault(self) -> bool:
        return self.error is not None or (self.response is not None and self.response.status_code != 200)


class AnswersFile:
    """What it had when it was opened, by an earlier run of the same batch. finished: the ids of its lines.
    faults: how many of them say what is wrong with a request."""

    def __init__(self, path: Path, fd: int, found: Sequence[_Line], end: int) -> None:
        """See `answers_file`."""
        self.finished = frozenset(line.id for line in found)
        self.faults = sum(line.is_fault for line in found)
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
            found, end = _checked(there, frozenset(ids)) if there.exists() else (list[_Line](), 0)
            if there == path and there.exists():
                os.rename(path, part)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, end)
                os.fsync(fd)
                sync_folder(path.parent)
                yield AnswersFile(path, fd, found, end)
            finally:
                os.close(fd)
        finally:
            lock.release(remove=True)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _checked(path: Path, ids: Collection[str]) -> tuple[list[_Line], int]:
    """The whole lines, and where these end. Raises UsageError."""
    found, end = dict[str, _Line](), 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n") and text[: len(BEGINNING)] == BEGINNING[: len(text)]:
                break  # torn
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.DecodeError:
                raise UsageError(f"{path}, line {number}, is no answer of a batch; choose another --out") from None
            if line.id not in ids:
                raise UsageError(
                    f"{path} has answers to other requests, of another model or with other options; choose another "
                    "--out, or repeat the command that began it"
                )
            if line.id in found:
                raise UsageError(f"{path}, line {number}: this request was answered before; choose another --out")
            found[line.id] = line
            end += len(text)
    return list(found.values()), end
