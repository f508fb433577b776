"""Commands in forks of one process that has imported the product already: a tenth of what a process of each costs.

Run as a module: it reads one case a line, as JSON, runs it with what the case takes from its process, and writes what
became of it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import http.client
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.support.faults.seccomp import deny

_PATIENCE_S = 120.0  # for a command of a second, or a pull that asks its source again for 63 s: beyond it, it hangs
_BODY = {"model": "demo", "prompt": "The king said", "stream": False, "options": {"num_predict": 6, "seed": 7}}
# With all that they import, what the commands load late.
_IMPORTED = (
    *("cli", "engine.cpu", "engine.model", "terminal.conversation_loop", "terminal.oneshot"),
    *("terminal.session_opening", "pull.pull", "pull.checkpoint.checkpoint_pull", "server.serve", "text.text_worker"),
    *("bench.forecast.forecast_verbs", "forecast.measure"),
)


@dataclass(frozen=True)
class Case:
    words: Sequence[str]
    home: str
    denied: Sequence[int] = ()  # system calls, by number
    errno: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)  # of this process, by the names of resource: bytes, or more
    environment: Mapping[str, str] = field(default_factory=dict)
    fault: Sequence[int] = ()  # of faulty_calls.cc: kind, first call, number of calls, errno
    strike: Sequence[int] = ()  # of struck_calls.cc: kind, which of its calls, what becomes of it, errno or ms, period
    quick: bool = False  # its text workers are forks as well, and it ends without taking its objects apart

    @property
    def serves(self) -> bool:
        return self.words[0] == "serve"


@dataclass(frozen=True)
class Outcome:
    """code: -N where signal N ended it. answer: of a server, to one request; status 0 where there was none.

    calls: how many of the kind that was to be struck were made.
    """

    code: int
    out: str
    err: str
    hung: bool = False
    status: int = 0
    answer: str = ""
    calls: int = 0


class Forks:
    """The process that forks, from the other side."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environment or {})},
        )

    def run(self, case: Case) -> Outcome:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(f"moeinf.{name}")
    gc.collect()
    gc.freeze()  # what was imported is not looked through anew, and copied, in each child
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(asdict(_outcome(Case(**json.loads(line))))) + "\n")
        answers.flush()


def _outcome(case: Case) -> Outcome:
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(case, out, err)
    status, answer = (0, "")
    if case.serves:
        status, answer = _ask(child, err)
        _signal(child, signal.SIGTERM)
    code, hung = _wait(child)
    texts = [os.pread(file, 1 << 20, 0).decode(errors="replace") for file in (out, err)]
    for file in (out, err):
        os.close(file)
    calls = int(ctypes.CDLL(None).counted_calls()) if case.strike else 0
    return Outcome(code, texts[0], texts[1], hung, status, answer, calls)


def _become(case: Case, out: int, err: int) -> NoReturn:
    from moeinf import cli

    os.setsid()
    for descriptor, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)
    folder = str(Path(case.home).parent)  # for what a command leaves that may delete nothing
    os.chdir(folder)
    os.environ.update({"MOEINF_HOME": case.home, "MOEINF_HOST": "127.0.0.1:1", "TMPDIR": folder, **case.environment})
    sys.argv = ["moeinf", *case.words]
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    for name, value in case.limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if case.fault:
        fail_calls = ctypes.CDLL(None).fail_calls
        fail_calls.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
        fail_calls(*case.fault)
    if case.strike:
        strike_calls = ctypes.CDLL(None).strike_calls
        kind, which, what, value, period = case.strike
        strike_calls(folder.encode(), kind, ctypes.c_long(which), what, value, ctypes.c_long(period))
    if case.denied:
        deny(case.denied, case.errno)
    if case.quick:
        _end_at_once(cli.main)
    cli.main()
    raise SystemExit(0)


def _end_at_once(command: Callable[[], object]) -> NoReturn:
    """As Python ends, but for what it does with its own memory, which a fork would have to copy for that."""
    from tests.support.faults.text_forks import fork_workers

    fork_workers()
    code = 1
    try:
        command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _ask(child: int, err: int) -> tuple[int, str]:
    """What the server answers; no status where it ended before it listened."""
    end = time.monotonic() + _PATIENCE_S
    while not (found := re.search(rb"listening on http://([\d.]+):(\d+)", os.pread(err, 1 << 16, 0))):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) or time.monotonic() > end:
            return 0, ""
        time.sleep(0.01)
    try:
        connection = http.client.HTTPConnection(found[1].decode(), int(found[2]), timeout=_PATIENCE_S)
        connection.request("POST", "/api/generate", json.dumps(_BODY), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, f"no answer: {error!r}"


def _wait(child: int) -> tuple[int, bool]:
    """The exit code, and whether it had to be killed."""
    end, hung = time.monotonic() + _PATIENCE_S, False
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() > end:
            _signal(child, signal.SIGKILL)
            hung = True
            break
        time.sleep(0.002)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), hung


def _signal(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        (os.killpg if number == signal.SIGKILL else os.kill)(child, number)


def told_in_a_line(outcome: Outcome) -> str:
    """ "" where a command that could not do its work has said so in one line, else what is wrong with that."""
    errors = [line for line in outcome.err.splitlines() if line.startswith("Error: ")]
    wrong: dict[str, Any] = {
        "it hung": outcome.hung,
        f"signal {-outcome.code} ended it": outcome.code < 0,
        "it asks for a report": "report it" in outcome.err + outcome.answer,
        "a traceback": "Traceback" in outcome.err,
        f"{len(errors)} lines of errors": len(errors) != 1,
        "no remedy": not re.search(r"[;:(] ?\w.*", errors[0][7:]) if errors else False,
    }
    return "; ".join(what for what, is_so in wrong.items() if is_so)


if __name__ == "__main__":
    _main()
