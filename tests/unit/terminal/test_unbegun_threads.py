"""A thread that dies of a MemoryError as it begins ends the command; Python would wait for it for ever."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from moeinf import _native

_BEGUN = """
import threading
from moeinf.terminal.process.unbegun_threads import end_with_unbegun_threads
end_with_unbegun_threads()

class Thread(threading.Thread):
    def _bootstrap(self):  # what the new thread calls
        raise MemoryError

class Fails:
    def __del__(self):
        raise MemoryError

"""


def _ended(lines: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _BEGUN + lines]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_thread_that_is_refused_memory_as_it_begins_ends_the_process_with_a_line() -> None:
    ended = _ended("Thread().start()\nprint('begun')")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "Error: not enough memory to begin a thread; free some memory, or raise the limit of the process (ulimit -v)\n"
    )


def test_what_else_python_can_raise_nowhere_is_told_as_before() -> None:
    ended = _ended("Fails()\nprint('goes on')")
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")
    assert ended.stderr.startswith("Exception ignored in") and "begin a thread" not in ended.stderr


def test_another_error_of_a_thread_ends_nothing() -> None:
    told = list[object]()
    error = SimpleNamespace(err_msg="Exception ignored in thread started by", exc_type=ValueError)
    _native.end_if_unbegun("Error\n", told.append, error)
    assert told == [error]
