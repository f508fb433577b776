"""Locks between processes, with flock and on file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moeinf.store.processes import locks
from moeinf.store.processes.locks import TakenError, is_taken, locked, take

DENIED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EPERM)
HOLDER = """
import errno, fcntl, os, sys
from pathlib import Path
number = int(sys.argv[2])
if number:
    def denied(*args):
        raise OSError(number, os.strerror(number))
    fcntl.flock = denied
from moeinf.store.processes.locks import take
lock = take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[0, *DENIED], ids=lambda number: errno.errorcode.get(number, "flock"))
def number(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The errno with which flock is refused; 0 where it works."""
    denied = int(request.param)

    def refuse(fd: int, operation: int) -> None:
        raise OSError(denied, os.strerror(denied))

    if denied:
        monkeypatch.setattr(fcntl, "flock", refuse)
        monkeypatch.setattr(locks, "_noted", set())
    return denied


def hold(path: Path, number: int) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def test_one_process_alone_has_it_and_a_killed_one_loses_it(number: int, tmp_path: Path) -> None:
    path = tmp_path / "work.lock"
    child = hold(path, number)
    try:
        assert is_taken(path)
        with pytest.raises(TakenError, match=f"^pid {child.pid}$"):
            take(path)
    finally:
        child.kill()
        child.communicate()
    assert not is_taken(path)
    lock = take(path)
    with pytest.raises(TakenError, match=f"^pid {os.getpid()}$"):
        take(path)  # another thread of the same process
    lock.release(remove=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", [False, True])
def test_threads_take_turns_over_what_a_killed_process_has_left(number: int, folder: bool, tmp_path: Path) -> None:
    path = tmp_path if folder else tmp_path / ".lock"
    inside, most, turns = [0], [0], [0]

    def work() -> None:
        for _ in range(5):
            with locked(path, folder=folder):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                turns[0] += 1
                inside[0] -= 1

    if number:  # the file of a process that is no more: of this number and another start
        marker = tmp_path / (".held" if folder else ".lock.held")
        marker.write_bytes(locks._Holder.here().dumps().replace(b" ", b" 1", 1))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most[0], turns[0]) == (1, 20)
    assert {each.name for each in tmp_path.iterdir()} <= {".lock"}


def test_a_folder_that_is_gone_is_not_made(number: int, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "model", folder=True):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_user_is_told_once(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "moeinf"):
        for name in ("a", "b"):
            take(tmp_path / name).release()
    assert len(caplog.messages) == (1 if number else 0)
    assert not number or os.strerror(number) in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSYS], indirect=True)
class TestFilesThatStandForLocks:
    def test_a_holder_of_another_machine_is_waited_for_and_then_named(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, marker = tmp_path / ".lock", tmp_path / ".lock.held"
        marker.write_text("4711 99 elsewhere node7")
        monkeypatch.setattr(locks, "_PATIENCE_S", 0.1)
        with pytest.raises(TakenError, match=f"^pid 4711 on node7; where that has ended, delete {marker}$"):
            take(path, wait=True)
        with pytest.raises(TakenError, match="node7"):
            take(path)
        marker.unlink()
        take(path).release()

    @pytest.mark.parametrize("said", ["", "one two", "99999999999999999999 1 2 3", "\x80"])
    def test_one_that_says_nothing_counts_for_some_seconds(self, number: int, said: str, tmp_path: Path) -> None:
        path, marker = tmp_path / ".lock", tmp_path / ".lock.held"
        marker.write_text(said)
        with pytest.raises(TakenError, match=r"pid \?"):
            take(path)
        os.utime(marker, (time.time() - 60,) * 2)
        take(path).release()
