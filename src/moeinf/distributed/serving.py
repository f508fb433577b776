"""A worker: it waits for rank 0, computes what it is asked, and waits for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from moeinf.distributed.frames import Head, Kind, Owned, Request, RequestForm
from moeinf.distributed.link import Link, LostError, MalformedError
from moeinf.distributed.listener import Listener
from moeinf.distributed.meeting import Facts, Offer
from moeinf.distributed.replies import ReplyForm
from moeinf.errors import MoeinfError
from moeinf.runtime.cache.table import BoolArray
from moeinf.types import ByteArray, Float32Array

FOREVER_S: Final = 3e8  # the listener breaks a link off whose rank 0 is gone
REST_S: Final = 30.0  # for what belongs to a message that has begun
END_S: Final = 1.0  # for the thread that computes, when the worker is to end
_TICK_S: Final = 0.2


class ServedExperts(Protocol):
    """What a worker computes with."""

    def only(self, mine: BoolArray, top_k: int) -> None:
        """mine [layers * experts]: which experts are this rank's from now on. Returns when they may be asked for.

        top_k: to how many of all experts each token will be routed.
        """
        ...

    def run(self, request: Request, rows: Float32Array) -> None:
        """Fills rows [request.num_rows, H]. Raises MoeinfError."""
        ...

    def counted(self) -> tuple[float, ...]:
        """What was counted so far, since it was opened: replies.numbers_of."""
        ...

    def end(self) -> None:
        """Rank 0 has gone: nothing is kept for layers to come."""
        ...


class WorkerServer:
    """Serves one rank 0 after the other. `run` blocks; an interrupt ends it."""

    def __init__(
        self, listener: Listener, facts: Facts, offer: Offer, experts: ServedExperts, say: Callable[[str], None]
    ) -> None:
        self._listener, self._facts, self._offer, self._experts, self._say = listener, facts, offer, experts, say
        self._stopped = threading.Event()
        self._link: Link | None = None
        self._fault: BaseException | None = None

    def run(self, form: RequestForm, replies: ReplyForm, *, once: bool = False) -> None:
        """Another thread computes: the one that called it is free for a signal.

        once: ends when a rank 0 has left that was served.
        """
        thread = threading.Thread(target=self._serve_all, args=(form, replies, once), name="worker", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_TICK_S)
        finally:
            self.stop()
            thread.join(END_S)
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """From any thread: `run` returns."""
        self._stopped.set()
        if (link := self._link) is not None:
            link.break_off()

    def _serve_all(self, form: RequestForm, replies: ReplyForm, once: bool) -> None:
        try:
            while not self._stopped.is_set():
                link = self._listener.accept(self._facts, self._offer, self._stopped.is_set)
                if link is not None:
                    self._say("rank 0 is here")
                    self._link = link
                    if self._stopped.is_set():
                        link.break_off()
                    self._say(Session(link, form, replies, self._experts).serve())
                    self._link = None
                    if once:
                        return
        except BaseException as error:  # the thread that called run raises it
            self._fault = error


class Session:
    """What rank 0 asks, from its coming to its going."""

    def __init__(self, link: Link, form: RequestForm, replies: ReplyForm, experts: ServedExperts) -> None:
        self._link, self._form, self._replies, self._experts = link, form, replies, experts
        self._owned: Owned | None = None

    def serve(self) -> str:
        """Returns how it has ended."""
        frame: ByteArray = np.zeros(self._form.frame_bytes, np.uint8)
        try:
            while True:
                self._link.receive(frame, FOREVER_S)
                head = self._form.head(frame)
                if head.kind == Kind.LEAVE:
                    return "rank 0 has gone: it has no more to ask"
                self._obey(head, frame, self._rest(head.rest_bytes))
        except MalformedError as error:
            return f"rank 0 is not served any more: {error}"
        except LostError as error:
            return f"rank 0 has gone: {error}"
        except MemoryError:
            return "rank 0 is not served any more: there is no memory for what it asks"
        finally:
            self._experts.end()
            self._link.close()

    def _rest(self, num_bytes: int) -> ByteArray | None:
        if not num_bytes:
            return None
        rest: ByteArray = np.empty(num_bytes, np.uint8)
        self._link.receive(rest, REST_S)
        return rest

    def _obey(self, head: Head, frame: ByteArray, rest: ByteArray | None) -> None:
        if head.kind == Kind.OWN:
            assert rest is not None
            self._own(self._form.owned(head, rest))
        elif self._owned is None:
            raise MalformedError("it asks before it has said which experts are whose")
        else:
            self._run(self._form.unpack(head, frame, rest, self._owned))

    def _own(self, owned: Owned) -> None:
        try:
            self._experts.only(*owned)
        except MoeinfError as error:
            self._reply(self._replies.frame(0), str(error))
        else:
            self._owned = owned
            self._reply(self._replies.frame(0))

    def _run(self, request: Request) -> None:
        frame = self._replies.frame(request.num_rows)
        try:
            self._experts.run(request, self._replies.rows(frame))
        except MoeinfError as error:
            if request.num_rows:
                self._reply(frame, str(error))
            return
        if request.num_rows:
            self._reply(frame)

    def _reply(self, frame: ByteArray, fault: str = "") -> None:
        self._replies.say(frame, self._experts.counted(), fault)
        self._link.send(frame, FOREVER_S)
