"""Locks on files and folders, which the kernel frees when their process ends.

A file system without flock (Lustre and NFS may be mounted so) gets a file beside what is locked in its place, which
one process alone can make. It says whose it is, so that the next process takes it away from one that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.05  # between two looks at whether a file that stands for a lock has gone
_PATIENCE_S: Final = 30.0  # with a holder of which this machine cannot tell whether it lives
_WRITTEN_S: Final = 10.0  # a file that says nothing after so long never will
_noted: set[int] = set()  # file systems without flock that the user was told of


class TakenError(OSError):
    """Another process holds the lock. The text says which, as far as that is known."""


@dataclass(slots=True)
class Lock:
    """A lock that this process holds until `release`."""

    path: Path
    _fd: int
    _marker: Path | None = None  # where the file system has no flock

    def release(self, *, remove: bool = False) -> None:
        """remove: the file that was locked goes first, so that whoever waits for it sees that it has lost its name."""
        for path in (self.path if remove else None, self._marker):
            if path is not None:
                with suppress(OSError):
                    path.unlink()
        os.close(self._fd)


def take(path: Path, *, wait: bool = False, folder: bool = False) -> Lock:
    """Takes the lock of a file, which is made and gets the number of this process, or of a folder that is there.

    wait: until a holder that is alive frees it. Raises TakenError, and OSError for a path that cannot be used.
    """
    marker = path / ".held" if folder else _marker_of(path)
    while True:
        fd = os.open(path, (os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT) | os.O_CLOEXEC, 0o666)
        try:
            lock = Lock(path, fd, None if _flock(fd, path, wait=wait) else _mark(marker, wait=wait))
            if _has_name(fd, path):
                _tell(fd)
                return lock
            lock.release()  # whoever held it has removed the file: the lock is that of the new one
        except BaseException:
            with suppress(OSError):
                os.close(fd)
            raise


@contextmanager
def locked(path: Path, *, folder: bool = False) -> Iterator[None]:
    """Keeps other processes, and other threads of this one, out of what they lock by the same path. Waits for them."""
    lock = take(path, wait=True, folder=folder)
    try:
        yield
    finally:
        lock.release()


def is_taken(path: Path) -> bool:
    """Whether a process holds the lock of this file. Makes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _held(_marker_of(path)) is not None
    finally:
        os.close(fd)
    return False


def _flock(fd: int, path: Path, *, wait: bool) -> bool:
    """False where the file system has no such locks, which is told once."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise TakenError(f"pid {_told(fd)}") from None
    except OSError as error:
        device = os.fstat(fd).st_dev
        if device not in _noted:
            _noted.add(device)
            logging.getLogger("moeinf").warning(
                "the file system of %s has no locks (flock: %s): files that end in .held take their place",
                path.parent,
                error.strerror,
            )
        return False
    return True


def _has_name(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _tell(fd: int) -> None:
    """Writes this process's number, for whoever finds the lock taken. Not into a folder."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)


def _told(fd: int) -> str:
    try:
        return os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "?"
    except OSError:  # a folder
        return "?"


def _marker_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")


def _mark(marker: Path, *, wait: bool) -> Path:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(FileExistsError):
            with os.fdopen(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
                file.write(_Holder.here().dumps())
            return marker
        holder = _held(marker)
        if holder is not None and (not wait or (not holder.is_local and time.monotonic() > deadline)):
            raise TakenError(holder.said(marker))
        time.sleep(_LOOK_S if holder is not None else 0)


def _held(marker: Path) -> _Holder | None:
    """Who holds a lock; None for nobody. A file of a process that has ended is removed."""
    holder = _read(marker)
    if holder is None or holder.lives:
        return holder
    with _alone_at(marker) as alone:
        holder = _read(marker) if alone else holder  # another one may have removed it, and taken the lock
        if not alone or holder is None or holder.lives:
            return holder
        marker.unlink()
    return None


@contextmanager
def _alone_at(marker: Path) -> Iterator[bool]:
    """Whether no other process of this machine is in here: an address of a socket has one owner, while that lives."""
    folder = marker.parent.stat()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
        try:
            owner.bind(f"\0moeinf {folder.st_dev} {folder.st_ino} {marker.name}"[:100])
        except OSError as error:
            yield error.errno != errno.EADDRINUSE
        else:
            yield True


def _read(marker: Path) -> _Holder | None:
    try:
        return _Holder.loads(marker.read_bytes(), marker.stat().st_mtime)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process that holds a lock, as its file says."""

    pid: int  # 0 where the file says nothing yet
    started: str  # in clock ticks since the machine was started, which tells two processes of one number apart
    place: str  # of the machine's start and the processes that it sees: only there the number means anything
    host: str
    written_s: float = 0.0

    @classmethod
    def here(cls) -> _Holder:
        return cls(os.getpid(), _started(os.getpid()), _place(), socket.gethostname().replace(" ", "_"))

    @classmethod
    def loads(cls, data: bytes, written_s: float) -> _Holder:
        words = data.decode("ascii", "replace").split(" ")
        if len(words) != 4 or not words[0].isdigit() or len(words[0]) > 9:
            return cls(0, "", _place(), "", written_s)
        return cls(int(words[0]), words[1], words[2], words[3], written_s)

    def dumps(self) -> bytes:
        return f"{self.pid} {self.started} {self.place} {self.host}".encode("ascii", "replace")

    @property
    def is_local(self) -> bool:
        return self.place == _place()

    @property
    def lives(self) -> bool:
        """Also where this machine cannot tell."""
        if not self.is_local:
            return True
        if not self.pid:
            return time.time() - self.written_s < _WRITTEN_S
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return _started(self.pid) in ("", self.started)

    def said(self, marker: Path) -> str:
        if self.is_local:
            return f"pid {self.pid or '?'}"
        return f"pid {self.pid} on {self.host}; where that has ended, delete {marker}"


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname().replace(" ", "_") or "?"


def _started(pid: int) -> str:
    """ "" where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
