"""POST /api/pull: fetches a model, and tells how far that is."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from moeinf.config.environment import with_environment
from moeinf.config.pull_options import NO_OPTIONS, PullOptions
from moeinf.errors import ModelNotFoundError
from moeinf.forecast.form_choice import usual_form
from moeinf.pull.forms.form import Form
from moeinf.references.fetching import fetch, origin_of, settled
from moeinf.references.meaning import Meaning, meaning
from moeinf.server.http import SILENCE_S, json_response
from moeinf.server.http_errors import BusyError, Refusal, StoppingError, fault_of, log_fault
from moeinf.server.ollama.errors import error_body
from moeinf.server.ollama.requests import PullRequest
from moeinf.server.service import Service
from moeinf.store.library import Library
from moeinf.store.naming.catalogue import KnownModel
from moeinf.types import JsonObject

STOP_S = 5.0  # within which a pull stops whose client has gone
STEP_S = 0.2  # between two lines about the same file
Status = JsonObject  # a line of the answer
SUCCESS: Status = {"status": "success"}


class Pulls:
    """Pulls one model at a time, each in a thread of its own. One whose client hangs up stops; the next goes on."""

    def __init__(self) -> None:
        self._last: tuple[str, RunningPull] | None = None  # the source of the pull that runs or ran

    async def pull(self, service: Service, request: Request) -> Response:
        service.refuse_strangers("pulling a model")
        asked = await service.body(request, PullRequest)
        found = await service.pools.store.run(lambda: pullable(asked.named, service.library))
        await self._take_turn(found)
        running = RunningPull()
        given = (running, found, service.library)
        threading.Thread(target=self._run, args=given, name="pull", daemon=True).start()
        self._last = found.reference, running  # not where the system had no thread to give
        if asked.stream is not False:
            return StreamingResponse(_lines(running), media_type="application/x-ndjson")
        return await _whole(running, request)

    async def _take_turn(self, found: Meaning) -> None:
        """Waits for a pull whose client has gone, which ends soon. Raises BusyError for one that goes on."""
        with suppress(asyncio.TimeoutError):
            while self._last is not None and self._last[1].cancelled.is_set() and not self._last[1].ended.is_set():
                await asyncio.wait_for(self._last[1].ended.wait(), STOP_S)
        if self._last is not None and not self._last[1].ended.is_set():
            what = found.asked if self._last[0] == found.reference else "another model"
            raise BusyError(f"{what} is being pulled already; ask again when that has ended")

    def _run(self, running: RunningPull, found: Meaning, library: Library) -> None:
        def choose(model: KnownModel, name: str, options: PullOptions) -> Form:
            return usual_form(model, name, options, with_environment(), library.home, running.note)

        try:
            fetch(settled(found, library, choose, running), library, running, again=True)
            last = SUCCESS
            running.put({"status": "writing manifest"})
        except BaseException as error:  # the client is told, whatever it was
            fault = fault_of(error)
            if fault.kind == "server" and not running.cancelled.is_set():
                log_fault(error, f"pull of {ascii(found.asked)[:100]}: ")
            last, running.status = error_body(fault), fault.status
        running.end(last)


def pullable(name: str, library: Library) -> Meaning:
    """What a name means to `moeinf pull`. Raises Refusal for a name of nothing, and for what a path has given: folders
    and files of this machine are its users' to give."""
    try:
        found = meaning(name, NO_OPTIONS, library)
        kind = "hub"  # of a known model, or of one that another program has, which goes by its name alone
        if found.known is None and found.foreign is None:
            kind = origin_of(found, library).source.kind
    except ModelNotFoundError as error:
        raise Refusal(400, str(error)) from None
    if kind in ("folder", "file"):
        raise Refusal(400, f"a {kind} can be pulled with `moeinf pull` only, on the machine that holds it")
    return found


class RunningPull:
    """A pull under way: a PullProgress, which turns the events of its thread into lines for the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.cancelled = threading.Event()
        self.ended = asyncio.Event()
        self.status = 200  # of HTTP, once it has ended
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[Status] = asyncio.Queue()
        self._line: Status = {}
        self._told_s = float("-inf")

    async def lines(self) -> AsyncIterator[Status]:
        """Yields lines up to `success` or an error; the last one again when there is nothing new for long."""
        line: Status = {"status": "pulling manifest"}
        while line is not SUCCESS and "error" not in line:
            with suppress(asyncio.TimeoutError):
                line = await asyncio.wait_for(self._lines.get(), SILENCE_S)
            yield line

    def put(self, line: Status) -> None:
        """Adds a line, from any thread. Nobody is told once the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def end(self, line: Status) -> None:
        """Adds the last line, and lets the next pull begin; from any thread."""
        self.put(line)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.ended.set)

    def stage(self, text: str) -> None:
        self._go_on()
        self.put({"status": text})

    def note(self, text: str) -> None:
        self.stage(f"note: {text}")

    def sizes(self, fetch_bytes: int, store_bytes: int, quantised_bytes: int) -> None:
        pass  # each file's line has its size

    def total(self, verb: str, num_bytes: int, done_bytes: int) -> None:
        pass

    def start(self, verb: str, file: str, num_bytes: int, done_bytes: int) -> None:
        self._go_on()
        self._line = {"status": f"{verb} {file}", "digest": _bar(verb, file), "total": num_bytes}
        if verb == "verifying":
            self._line = {"status": "verifying sha256 digest", "total": num_bytes}
        self._line["completed"] = done_bytes
        self._tell()

    def advance(self, num_bytes: int) -> None:
        self._go_on()
        self._line["completed"] += num_bytes
        if self._clock() - self._told_s >= STEP_S:
            self._tell()

    def finish(self) -> None:
        self._tell()

    def waiting(self) -> None:
        self._go_on()

    def _tell(self) -> None:
        self._told_s = self._clock()
        self.put(dict(self._line))

    def _go_on(self) -> None:
        """Raises StoppingError once the client has hung up: what was done stays for the next pull."""
        if self.cancelled.is_set():
            raise StoppingError("cancelled")


def _bar(verb: str, file: str) -> str:
    """What tells the bar of one file from that of another: clients have one for each digest."""
    return f"sha256:{hashlib.sha256(f'{verb} {file}'.encode()).hexdigest()}"


async def _lines(running: RunningPull) -> AsyncIterator[bytes]:
    try:
        async for line in running.lines():
            yield msgspec.json.encode(line) + b"\n"
    finally:
        running.cancelled.set()


async def _whole(running: RunningPull, request: Request) -> Response:
    """The last line alone. A client that hangs up stops the pull."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        running.cancelled.set()

    watching = asyncio.create_task(watch())
    try:
        lines = [line async for line in running.lines()]
        return json_response(lines[-1], running.status)
    finally:
        running.cancelled.set()
        watching.cancel()
