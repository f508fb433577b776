"""A worker: it waits for rank 0, computes what it is asked, and waits for the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from moeinf.distributed.frames import Kind, ReplyForm, Request, RequestForm, kind_of, top_k_of
from moeinf.distributed.group import Group, LostError, Transfer
from moeinf.distributed.meeting import Facts, Listener, Offer
from moeinf.errors import MoeinfError, WorkerError
from moeinf.runtime.cache.table import BoolArray
from moeinf.types import ByteArray, Float32Array

FOREVER_S: Final = 3e8
SILENT_S: Final = 30.0  # without a ping of rank 0, which sends one every second: its machine is gone
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
        """What was counted so far, since it was opened: frames.numbers_of."""
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
        self._group: Group | None = None
        self._fault: Exception | None = None

    def run(self, form: RequestForm, replies: ReplyForm, *, once: bool = False) -> None:
        """The thread that called it watches whether rank 0 is there; another one computes.

        once: ends when a rank 0 has left that was served.
        """
        thread = threading.Thread(target=self._serve_all, args=(form, replies, once), name="worker", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                self._watch()
        finally:
            self._stopped.set()
            if (group := self._group) is not None:
                group.break_off()
            thread.join(SILENT_S)
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """From any thread: `run` returns."""
        self._stopped.set()
        if (group := self._group) is not None:
            group.break_off()

    def _watch(self) -> None:
        """While rank 0 is served: looks for its pings, and refuses others."""
        pings, heard_s = -1, time.monotonic()
        while not self._stopped.wait(_TICK_S):
            group = self._group
            if group is None:
                return
            if (now := self._listener.pings()) != pings:
                pings, heard_s = now, time.monotonic()
            elif time.monotonic() - heard_s > SILENT_S:
                group.break_off()
                return
            self._listener.refuse_others("it serves another process")

    def _serve_all(self, form: RequestForm, replies: ReplyForm, once: bool) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    group = self._listener.accept(self._facts, self._offer, self._stopped.is_set)
                except (WorkerError, LostError) as error:
                    self._say(str(error) if isinstance(error, WorkerError) else f"a peer has gone: {error}")
                    continue
                if group is not None:
                    self._say("rank 0 is here")
                    self._group = group
                    self._say(f"rank 0 has gone: {Session(group, form, replies, self._experts).serve()}")
                    self._group = None
                    if once:
                        return
        except Exception as error:  # the thread that called run raises it
            self._fault, self._group = error, None


class Session:
    """What rank 0 asks, from its coming to its going."""

    def __init__(self, group: Group, form: RequestForm, replies: ReplyForm, experts: ServedExperts) -> None:
        self._group, self._form, self._replies, self._experts = group, form, replies, experts
        self._frames = [np.zeros(form.frame_bytes, np.uint8) for _ in range(2)]  # one comes while one is read
        self._sent: Transfer | None = None

    def serve(self) -> str:
        """Returns why it has ended."""
        try:
            receipt = self._group.receive(self._frames[0])
            while True:
                receipt.wait(FOREVER_S)
                frame = self._frames[0]
                self._frames.reverse()
                receipt = self._group.receive(self._frames[0])  # before the reply, so that the next finds it waiting
                kind = kind_of(frame)
                if kind == Kind.LEAVE:
                    return "it has no more to ask"
                rest = self._rest(self._form.rest_bytes(frame))
                if kind == Kind.OWN:
                    self._own(rest, top_k_of(frame))
                else:
                    self._run(self._form.unpack(frame, rest))
        except LostError as error:
            return str(error)
        finally:
            self._experts.end()
            self._group.break_off()

    def _rest(self, num_bytes: int) -> ByteArray | None:
        if not num_bytes:
            return None
        rest: ByteArray = np.empty(num_bytes, np.uint8)
        self._group.receive(rest, tag=1).wait(SILENT_S)
        return rest

    def _own(self, bits: ByteArray | None, top_k: int) -> None:
        assert bits is not None
        try:
            self._experts.only(np.unpackbits(bits).astype(np.bool_), top_k)
        except MoeinfError as error:
            return self._reply(self._replies.frame(0), str(error))
        self._reply(self._replies.frame(0))

    def _run(self, request: Request) -> None:
        if self._sent is not None:
            sent, self._sent = self._sent, None  # a second wait for it would never end
            sent.wait(SILENT_S)  # its memory is written anew
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
        self._sent = self._group.send(frame)
