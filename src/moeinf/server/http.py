"""What the three APIs share of HTTP: errors in each API's form, answers whole or streamed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moeinf.engine.completion import Completion
from moeinf.server.ask import Chosen, Ended, Event, Failed, Loading, Queued, Text
from moeinf.server.blocking.thread_pool import ThreadPool
from moeinf.server.http_errors import Fault, fault_of, log_fault
from moeinf.server.turns.job import LOOK_S, Job
from moeinf.text.process import Stopped
from moeinf.types import JsonObject

T = TypeVar("T")
SILENCE_S = 10.0  # a streamed answer says something at least so often: proxies and clients give up on silence
HOLD_S = 5.0  # a stream begins at the latest so long after the request, though the model has not begun to read
_GONE = 499  # of the log alone, as other servers have it for a client that has gone
Handler = Callable[[Request], Awaitable[Response]]


class ErrorForm(Protocol):
    """How one API writes an error: the body of a response."""

    def __call__(self, fault: Fault) -> JsonObject: ...


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def error_response(error: Exception, form: ErrorForm) -> Response:
    fault = fault_of(error)
    if fault.kind == "server":
        log_fault(error)
    return json_response(form(fault), fault.status, fault.headers)


def answering(form: ErrorForm) -> Callable[[Handler], Handler]:
    """A handler whose errors become responses in the form of its API."""

    def decorate(handler: Handler) -> Handler:
        async def answered(request: Request) -> Response:
            try:
                return await handler(request)
            except (ClientDisconnect, Stopped):  # as it asked, or while its text was looked at: nobody reads this
                return Response(status_code=_GONE)
            except Exception as error:  # the client is told, whatever it was
                return error_response(error, form)

        return answered

    return decorate


class Answer:
    """A whole answer, for clients that do not want it piece by piece."""

    def __init__(self) -> None:
        self.text = self.thinking = ""
        self.chosen: list[Chosen] = []
        self.completion: Completion | None = None
        self.load_s = 0.0
        self.others: Sequence[Answer] = ()  # of the same request, behind this one

    @property
    def made(self) -> Completion:
        """The completion of an answer that has ended."""
        assert self.completion is not None, "a prompt was given, so that there is an answer"
        return self.completion

    def take(self, event: Event | None) -> None:
        """Raises the error of an answer that failed."""
        if isinstance(event, Text) and event.thought:
            self.thinking += event.text
        elif isinstance(event, Text):
            self.text += event.text
        elif isinstance(event, Chosen):
            self.chosen.append(event)
        elif isinstance(event, Ended):
            self.completion, self.load_s = event.completion, event.load_s
        elif isinstance(event, Failed):
            raise event.error


async def whole_answer(request: Request, jobs: Sequence[Job]) -> Answer:
    """Waits for the end of the jobs of a request, which a client that hangs up cancels. Raises what one failed with."""
    answers, cancel = [Answer() for _ in jobs], cancelling(jobs)
    watch = asyncio.create_task(_when_gone(request.receive, cancel))
    try:
        for job, answer in zip(jobs, answers, strict=True):
            async for event in job.events(SILENCE_S):
                answer.take(event)
    finally:
        cancel()  # which an answer that has ended does not mind
        watch.cancel()
    answers[0].others = answers[1:]
    return answers[0]


def cancelling(jobs: Sequence[Job]) -> Callable[[], None]:
    """What ends them all."""

    def cancel() -> None:
        for job in jobs:
            job.cancel()

    return cancel


Encode = Callable[[Event | None], Iterable[bytes]]


async def streamed(
    request: Request, jobs: Sequence[Job], encode: Encode, media_type: str, refuse: Callable[[], Awaitable[None]]
) -> EventStream:
    """The stream of the answers to a request, one behind the other, once the model begins to read for the first: until
    then an error is raised, and has a status.

    refuse: raises what can be said against the request without the model. It is called where HOLD_S passes before the
    model begins, as a stream must not be silent for long. Raises what the job failed with.
    """
    job, cancel = jobs[0], cancelling(jobs)
    watch = asyncio.create_task(_when_gone(request.receive, cancel))
    loop = asyncio.get_running_loop()
    until, event = loop.time() + HOLD_S, None
    try:
        while (left := until - loop.time()) > 0:
            event = await job.next(min(left, LOOK_S))
            if isinstance(event, Failed):
                raise event.error
            if event is not None and not isinstance(event, Loading):
                break
            if event is None and _waits_longer(job, until - loop.time()):
                left = 0.0
                break
        if left <= 0:
            await refuse()
            event = event or job.place()
    except BaseException:
        cancel()
        raise
    finally:
        watch.cancel()
    return EventStream(jobs, encode, media_type, event)


def _waits_longer(job: Job, seconds: float) -> bool:
    """Whether a job waits for its turn, and for longer than that as far as is known."""
    place = job.place()
    return place is not None and place.eta_s is not None and place.eta_s > seconds


class EventStream(Response):
    """Streams what `encode` makes of the events of jobs, one behind the other; None stands for silence. A client that
    hangs up cancels them.

    encode also gets Failed: the status is out by then, so that the error is a part of the stream.
    """

    def __init__(self, jobs: Sequence[Job], encode: Encode, media_type: str, first: Event | None) -> None:
        """first: the event before those that the first job will give."""
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        if isinstance(first, Queued):
            headers["X-Queue-Position"] = str(first.position)
            if first.eta_s is not None:
                headers["X-Queue-Eta"] = f"{first.eta_s:.1f}"
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._jobs, self._encode, self._first = jobs, encode, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cancel = cancelling(self._jobs)
        watch = asyncio.create_task(_when_gone(receive, cancel))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in self._pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            cancel()
            watch.cancel()

    async def _pieces(self) -> AsyncIterator[bytes]:
        async for event in self._events():
            if isinstance(event, Failed) and fault_of(event.error).kind == "server":
                log_fault(event.error)
            for piece in self._encode(event):
                if piece:
                    yield piece

    async def _events(self) -> AsyncIterator[Event | None]:
        yield self._first
        for job in self._jobs[isinstance(self._first, Ended) :]:
            async for event in job.events(SILENCE_S, self._first):
                yield event
                if isinstance(event, Failed):
                    return


async def on_a_thread(request: Request, pool: ThreadPool, call: Callable[[Callable[[], bool]], T]) -> T:
    """What `call` returns on a thread, where it is given a function that tells whether the client has hung up."""
    gone = threading.Event()
    watch = asyncio.create_task(_when_gone(request.receive, gone.set))
    try:
        return await pool.run(lambda: call(gone.is_set))
    finally:
        gone.set()
        watch.cancel()


async def _when_gone(receive: Receive, tell: Callable[[], None]) -> None:
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        tell()


def sse(data: object, event: str = "") -> bytes:
    """One server-sent event. data: bytes as they are, else what becomes JSON."""
    body = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + body + b"\n\n"
