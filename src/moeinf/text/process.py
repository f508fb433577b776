"""The parent's end of the text worker: one request at a time, each with a deadline, over a pair of pipes."""

from __future__ import annotations

import itertools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from moeinf.config.environment import debug_wanted
from moeinf.errors import MoeinfError, StarvedError, TextError
from moeinf.text.process_limits import TimeLimit
from moeinf.types import Json, JsonMapping, JsonObject

_LOAD_LIMIT_S = 60.0
_LOOK_S = 0.1  # between two looks whether the caller still wants the answer
# The worker gets this process's import path, and not the current folder, which may hold a json.py of anybody.
_BOOTSTRAP = """
import os, sys
sys.path[:] = sys.argv[1].split(os.pathsep)
try:
    from moeinf.text.text_worker import main
    main()
except Exception as error:
    import json
    os.write(1, json.dumps({"cannot_work": f"{type(error).__name__}: {error}"}).encode() + b"\\n")
    raise
"""
_waited_s = defaultdict[int, float](float)  # by thread
_KILL_PATIENCE_S = 5.0  # for a worker that cannot be killed to see that its input has ended


def waited_s(thread: int) -> float:
    """Seconds, or nearly so, for which a thread of this process has waited for answers so far. There is an end to each
    wait: TimeLimit.starved."""
    return _waited_s.get(thread, 0.0)


class Stopped(Exception):
    """The caller no longer wants the answer that a worker was at. See TextProcess.until."""


class TextProcess:
    """A worker for one model folder. Loading starts at once, and the first request waits for it.

    A worker that hangs, dies or runs out of memory raises a TextError, and the next request gets a new worker. It does
    so too where the worker has died since the last one: that is no fault of the next. One that
    the system refuses what it needs is no fault of the model's: that is a MoeinfError of its own.
    """

    def __init__(self, folder: Path, where: str = "", remedy: str = "pull the model again") -> None:
        """where: the folder's name in errors. remedy: what they advise where it cannot be loaded."""
        self._folder = folder
        self._where = where or str(folder)
        self._remedy = remedy
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._ids = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self.workers = 0  # so far, each of which knows nothing of what was asked of those before
        self._should_stop: Callable[[], bool] = lambda: False
        self._start()

    @contextmanager
    def until(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        """While entered, every request raises Stopped soon after should_stop() says so, and its worker is ended."""
        before, self._should_stop = self._should_stop, should_stop
        try:
            yield
        finally:
            self._should_stop = before

    def request(self, op: str, limit_s: float, **fields: Json) -> JsonObject:
        """Returns the worker's answer. Raises TextError, Stopped; StarvedError where the machine does not let it work.

        limit_s: of its processor time, after the load; see TimeLimit. A field cpu_s bounds that to the millisecond.
        """
        with self._used():
            self._loaded()
            return self._receive(self._send(op, limit_s, fields), op, limit_s)

    def info(self) -> JsonMapping:
        """Returns what loading told about the tokenizer. Blocks until it is loaded. Raises TextError."""
        with self._used():
            return self._loaded()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """One request at a time, from any thread of the process that has started the worker. Raises TextError."""
        if os.getpid() != self._owner:  # two processes would take each other's answers
            raise TextError(
                f"the tokenizer of {self._where} belongs to the process that this one was forked from; open it here"
            )
        with self._lock:
            if self._process is not None and self._heard and self._process.poll() is not None:
                self.close()
            if self._process is None:
                self._start()
            yield

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
            return
        with suppress(OSError):  # a filter of system calls may refuse it: the worker ends with its input as well
            process.kill()
        with suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=_KILL_PATIENCE_S)

    def _start(self) -> None:
        paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, os.pathsep.join(paths), str(self._folder)],
            bufsize=0,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if debug_wanted() else subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the foreground group of the terminal: not this process
        )
        self._unread, self._heard = b"", False
        self.workers += 1
        self._info: JsonObject | None = None
        self._load_id = self._send("load", _LOAD_LIMIT_S, {})

    def _loaded(self) -> JsonMapping:
        if self._info is None:
            self._info = self._receive(self._load_id, "load", _LOAD_LIMIT_S)
        return self._info

    def _send(self, op: str, limit_s: float, fields: JsonMapping) -> int:
        request_id = next(self._ids)
        try:
            said = json.dumps({"op": op, "id": request_id, "limit_s": limit_s, **fields}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TextError(f"a value of this request is no JSON ({error}); change it or leave it out") from error
        data = said.encode() + b"\n"
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            while data:
                data = data[process.stdin.write(data) :]
        except BrokenPipeError:
            raise self._ended(op, process) from None
        return request_id

    def _receive(self, request_id: int, op: str, limit_s: float) -> JsonObject:
        process = self._process
        assert process is not None
        limit = TimeLimit(process.pid, limit_s)
        while True:
            answer: JsonObject = json.loads(self._line(op, limit))
            self._heard = True
            if "cannot_work" in answer:
                raise self._refused(str(answer["cannot_work"]))
            if answer.get("fatal"):
                raise self._lost(op, f"failed ({answer['error']})")
            if answer.pop("id") == request_id:  # others are answers that an interrupted caller never fetched
                break
        if "error" in answer:
            raise TextError(_one_line(str(answer["error"])) if op != "load" else self._load_error(answer))
        return answer

    def _line(self, op: str, limit: TimeLimit) -> bytes:
        process = self._process
        assert process is not None and process.stdout is not None
        descriptor = process.stdout.fileno()
        arrival = select.poll()  # select() takes no descriptor beyond 1023, which a server of many clients passes
        arrival.register(descriptor, select.POLLIN)
        while b"\n" not in self._unread:
            if not arrival.poll(1000 * min(limit.left_s() or _LOOK_S, _LOOK_S)):
                _waited_s[threading.get_native_id()] += _LOOK_S
                if self._should_stop():
                    self.close()
                    raise Stopped
                if limit.exceeded():
                    raise self._lost(op, f"took more than {limit.limit_s:.0f} s")
                if limit.starved():
                    self.close()
                    raise StarvedError(
                        f"the process of the tokenizer of {self._where} gets no processor time, or was stopped; ask "
                        "again when the machine is less busy"
                    )
                continue
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                raise self._ended(op, process)
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _ended(self, op: str, process: subprocess.Popen[bytes]) -> MoeinfError:
        code = process.wait()
        self.close()
        if not self._heard:  # it had not come to the model's files yet
            return self._refused(f"exit code {code}" if code >= 0 else f"signal {-code}")
        if code == -signal.SIGKILL:  # nothing that it reads can do that
            return StarvedError(
                f"the process of the tokenizer of {self._where} was killed, perhaps for want of memory; ask again"
            )
        return self._lost(op, "took too much processor time" if code == -signal.SIGPROF else "died")

    def _refused(self, what: str) -> MoeinfError:
        self.close()
        return MoeinfError(
            f"the process of the tokenizer of {self._where} cannot work here ({_one_line(what)}): the system refuses "
            "it memory, files, processes or a call; raise the limits (ulimit -a), or allow it to the container or "
            "sandbox"
        )

    def _lost(self, op: str, what: str) -> MoeinfError:
        self.close()
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY and op == "load":
            return self._refused(f"it {what} under a limit of address space (ulimit -v)")
        part, remedy = {
            "load": ("the tokenizer", f"{self._remedy}, or report it to the model's makers"),
            "render": ("the chat template", "use --raw to do without it"),
            "constrain": ("the grammar for an answer", "give a simpler schema"),
            "accept": ("the grammar for an answer", "give a simpler schema"),
        }.get(op, ("the tokenizer", "try another prompt or pull the model again"))
        return TextError(f"{part} of {self._where} {_one_line(what)} and was stopped; {remedy}")

    def _load_error(self, answer: Mapping[str, object]) -> str:
        self.close()
        error, remedy = _one_line(str(answer["error"])), answer.get("remedy", self._remedy)
        return f"the tokenizer of {self._where} cannot be loaded ({error}); {remedy}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
