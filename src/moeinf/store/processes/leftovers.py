"""Files and folders for the time of some work, and those that processes which were killed have left.

Versions before this one measured in folders named .doctor-*, which are found as well.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.errors import StoreError
from moeinf.store.files import named
from moeinf.store.processes.locks import take

_FILE: Final = ".scratch-"
_FOLDER: Final = "moeinf-scratch-"
_OLDER_FOLDER: Final = re.compile(r"moeinf-[a-z0-9_]{8}")  # of a tokenizer that was tried
# By the folder in a store: what stands there under a name that no version has read, but while it was written.
_PATTERNS: Final = {
    "": (".doctor-*", f"{_FILE}*", ".*.tmp", ".history?*"),
    "names": ("*/.*.tmp",),
    "models": (".trash-*", "*/.*.tmp"),
    "prefixes": ("*/.*.tmp",),
    "sensitivities": ("*/.*.tmp",),
    "calibrations": ("*/.*.tmp",),
}


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a process that was killed has left."""

    path: Path
    num_bytes: int  # on disk

    def discard(self) -> None:
        """Deletes it. Raises StoreError where the system refuses that."""
        try:
            if self.path.is_dir() and not self.path.is_symlink():
                shutil.rmtree(self.path)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise named(error, str(self.path)) from error


@contextmanager
def scratch_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """A file to write and read for a while: its descriptor, and a path by which this process opens it again.

    It has no name, so that the kernel deletes it however the process ends. Where /proc is not mounted, nothing can be
    opened without a name: it keeps its own until then. Raises OSError.
    """
    for nameless in (True, False):
        fd, name = tempfile.mkstemp(prefix=_FILE, dir=folder)
        path = Path(f"/proc/self/fd/{fd}") if nameless else Path(name)
        try:
            if nameless:
                with suppress(OSError):  # of a system that lets nobody delete: `prune` finds it
                    os.unlink(name)
            if not nameless or _opens(path):
                yield fd, path
                return
        finally:
            os.close(fd)
            with suppress(OSError):
                os.unlink(name)


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder where the system has those for a while (TMPDIR). Open as long as it is in use, which tells so.

    Raises StoreError where there is none that can be written.
    """
    if _shared() is None:
        raise StoreError("no folder for temporary files can be written; set TMPDIR to one that can")
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(fd)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # TemporaryDirectory recurses for ever where it may not delete


def find_leftovers(home: Path, copies: Iterable[Path] = ()) -> list[Leftover]:
    """What no process of this machine has open. Under the store's lock only.

    copies: the folders in which experts lie on other disks.
    """
    found = [path for folder, patterns in _PATTERNS.items() for each in patterns for path in (home / folder).glob(each)]
    found += [path for folder in copies for path in folder.glob(".*.tmp")]
    if (shared := _shared()) is not None:
        found += [path for path in shared.glob("moeinf-*") if _is_ours(path)]
    opened = _opened() if found else set()
    return [Leftover(path, num_bytes) for path in found if (num_bytes := _unused_bytes(path, opened)) is not None]


def free_locks(home: Path) -> None:
    """Deletes the locks of pulls whose work folder has gone."""
    for path in (home / "partial").glob("*.lock"):
        if not path.with_suffix("").exists():
            with suppress(OSError):
                take(path).release(remove=True)


def _shared() -> Path | None:
    """The system's folder of temporary files; None where none can be written, as in a read-only container."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None


def _is_ours(path: Path) -> bool:
    """In a folder that all users and programs share: whether this user's moeinf has made it for some work."""
    try:
        if not path.is_dir() or path.is_symlink() or path.stat().st_uid != os.geteuid():
            return False
        if path.name.startswith(_FOLDER):
            return True
        older = _OLDER_FOLDER.fullmatch(path.name) and (path / "tokenizer.json").is_file()
        return bool(older) and all(each.is_file() for each in path.iterdir())
    except OSError:
        return False


def _unused_bytes(path: Path, opened: set[tuple[int, int]]) -> int | None:
    """Bytes on disk of a file, or of all in a folder; None where something of it is open, or it has gone."""
    try:
        facts = [path.lstat()]
        if path.is_dir() and not path.is_symlink():
            facts += [each.lstat() for each in path.rglob("*")]
    except FileNotFoundError:
        return None
    except OSError:
        return 0  # of another user: `discard` tells
    if any((each.st_dev, each.st_ino) in opened for each in facts):
        return None
    return sum(each.st_blocks * 512 for each in facts if stat.S_ISREG(each.st_mode) and each.st_nlink == 1)


def _opened() -> set[tuple[int, int]]:
    """Device and number of all files that processes have open, as far as this one is told."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for fd in os.listdir(folder):
                with suppress(OSError):
                    facts = os.stat(folder / fd)
                    found.add((facts.st_dev, facts.st_ino))
    return found
