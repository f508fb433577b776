"""Machines that are too small for a while: a disk of its own that is filled, and a group of processes whose memory one
of them takes.

Both need root, the one loop devices as well, the other control groups of version 1 or 2; without them nothing is short.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.campaign.power import own_disk

_GROUPS: Final = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
# Takes memory, some at a time, until there is as little left as it was told; ends when its input does.
_TAKER: Final = """
import sys
from moeinf.hardware import memory_now
left, taken = int(sys.argv[1]), []
while memory_now().available_bytes > left and len(taken) < 4000:
    taken.append(bytearray(b"x") * (1 << 20))
sys.stdin.read()
"""


@dataclass(frozen=True)
class Group:
    """A control group with a limit of memory."""

    folder: Path

    def enter(self) -> None:
        """This process, and those that it starts from now on."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def _enter_first(self) -> None:
        self.enter()
        Path("/proc/self/oom_score_adj").write_text("1000")  # if anything has to be killed, then this

    @contextmanager
    def taken(self, left_bytes: int) -> Iterator[None]:
        """While entered, somebody takes all but so many bytes of the group's memory."""
        words = [sys.executable, "-c", _TAKER, str(left_bytes)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, preexec_fn=self._enter_first)
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


_LIMIT: Final = ("memory.limit_in_bytes", "memory.max")


@contextmanager
def group(limit_bytes: int) -> Iterator[Group | None]:
    """A group with this limit; None where none can be made."""
    with ExitStack() as made:
        try:
            folder = next(each for each in _GROUPS if each.is_dir()) / f"moeinf-campaign-{os.getpid()}"
            folder.mkdir()
            made.callback(_removed, folder)
            limit = next(path for name in _LIMIT if (path := folder / name).exists())
            limit.write_text(str(limit_bytes))
        except (OSError, StopIteration):
            yield None
        else:
            yield Group(folder)


def _removed(folder: Path) -> None:
    for _ in range(50):  # a process that was killed may still be about to end
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A folder on a disk of its own; None where there can be none."""
    with ExitStack() as made:
        try:
            disk = made.enter_context(own_disk(folder, "defaults"))
        except (OSError, subprocess.CalledProcessError):
            yield None
        else:
            yield disk.mount


def fill(folder: Path, meanwhile: Callable[[], None]) -> None:
    """The disk of a folder has no room left meanwhile."""
    path = folder / "filler"
    try:
        with path.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                _write_on(file.write, bytes(size))
            meanwhile()
    finally:
        path.unlink(missing_ok=True)


def _write_on(write: Callable[[bytes], object], data: bytes) -> None:
    try:
        while True:
            write(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
