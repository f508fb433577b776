"""Text workers as forks of the process that needs them: it has imported already what each of them would import."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import IO, Any, NoReturn

from moeinf.text import process, text_worker


class ForkedWorker:
    """What moeinf.text.process takes of subprocess.Popen, for the one command that it starts."""

    def __init__(self, words: list[str], *, env: dict[str, str], **_: Any) -> None:
        theirs, ours = os.pipe()
        mine, told = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, env, theirs, told)
        for descriptor in (theirs, told):
            os.close(descriptor)
        self.stdin: IO[bytes] = os.fdopen(ours, "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(mine, "rb", 0)

    def poll(self) -> int | None:
        return self._reaped(os.WNOHANG)

    def wait(self) -> int:
        code = self._reaped(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)

    def communicate(self, timeout: float) -> None:
        """It has been killed."""
        self.wait()
        self.stdin.close()
        self.stdout.close()

    def _reaped(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork_workers() -> None:
    """From now on the text workers of this process are forks of it."""
    process.subprocess = _Subprocess()  # type: ignore[assignment,attr-defined]


class _Subprocess:
    Popen, PIPE, DEVNULL, TimeoutExpired = ForkedWorker, subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired


def _become(words: list[str], environment: dict[str, str], asked: int, told: int) -> NoReturn:
    try:
        ctypes.CDLL(None).strike_no_calls()
        os.setsid()
        os.dup2(asked, 0)
        os.dup2(told, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.update(environment)
        sys.argv = words
        sys.stdin, sys.stdout = (os.fdopen(at, mode, closefd=False) for at, mode in ((0, "r"), (1, "w")))
        text_worker.main()
    finally:
        os._exit(1 if sys.exc_info()[0] else 0)
