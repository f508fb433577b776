"""A server that a command starts for itself: `moeinf serve` in a process of its own."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.config.option import options
from moeinf.errors import MoeinfError

_START_S: Final = 60.0  # of a busy machine
_END_S: Final = 12.0  # see server/serve.py
_LOOK_S: Final = 0.05
_PR_SET_PDEATHSIG: Final = 1
_LISTENING: Final = re.compile(r"^listening on (http://\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StartedServer:
    url: str
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """Ends it in order, and waits for that; what hangs is killed."""
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_server(
    words: Sequence[str], config: RuntimeConfig, log: Path, *, ends_with_us: bool = False
) -> StartedServer:
    """Starts `moeinf serve` with these words and these options of models, and waits until it listens.

    log: a file that gets what it writes. The server heeds no key of its terminal, and outlives this process unless it
    is ended; ends_with_us: on Linux, it also ends where this process is killed. Raises MoeinfError, in the server's
    words, where it does not start.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moeinf", "serve", *words],
            env=os.environ | variables_of(config),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_end_with_parent if ends_with_us else None,
        )
    started = StartedServer("", process)
    try:
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            ended = process.poll() is not None
            text = log.read_text(encoding="utf-8", errors="replace")
            if found := _LISTENING.search(text):
                return StartedServer(found[1], process)
            if ended:
                said = text.strip().splitlines() or [f"it ended with code {process.returncode}"]
                raise MoeinfError(f"no server could be started: {said[-1].removeprefix('Error: ')}")
            time.sleep(_LOOK_S)
        raise MoeinfError(f"the server that was started does not listen; {log} has what it said")
    except BaseException:
        with suppress(ProcessLookupError):
            started.end()
        raise


def _end_with_parent() -> None:
    """Has the kernel send SIGTERM to this process when the one that started it has ended."""
    with suppress(AttributeError):  # of Linux alone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def variables_of(config: RuntimeConfig) -> Mapping[str, str]:
    """The environment variables that mean this configuration."""
    given = config.given()
    return {each.variable: given[each.name] for each in options(RuntimeConfig) if each.name in given}
