"""A worker, as rank 0 sees it: what it owns, what it was asked, and whether it is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.distributed.frames import STALL, Kind, ReplyForm, Request, RequestForm, no_numbers, order
from moeinf.distributed.group import Group, LostError, Transfer
from moeinf.distributed.meeting import Facts, Offer, call
from moeinf.errors import WorkerError
from moeinf.types import ByteArray, Float32Array, FloatArray, IntArray, MoeShape

REPLY_S: Final = 60.0  # the longest that a layer of a worker may take; then it counts as lost
PING_S: Final = 1.0  # from one to the next
FIRST_RETRY_S: Final = 2.0  # until a lost worker is called again; doubled each time
LAST_RETRY_S: Final = 60.0
STOP_S: Final = 0.75  # for a reply to an answer that is to end; then its worker counts as lost
SETTLE_S: Final = 0.1  # for a thread that has been told to end
SILENT_S: Final = 5.0  # without a ping that came through: the worker's process stands still, or the network is gone


@dataclass(frozen=True, slots=True)
class PeerAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    """The way to a worker that is there, until it is lost. Used by one thread at a time, but `watch` and `end`."""

    def __init__(
        self,
        address: PeerAddress,
        key: bytes,
        facts: Facts,
        top_k: int,
        width: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """should_stop: whether the answer is to end that a reply is awaited for; from any thread.

        Raises WorkerError where the worker refuses, LostError where nothing answers.
        """
        self.offer: Offer
        self.offer, self._group, self._ping = call(address.host, address.port, key, facts)
        self._form, self._replies = RequestForm(top_k, width), ReplyForm(width)
        self._frame: ByteArray = np.zeros(self._form.frame_bytes, np.uint8)
        self._sent: list[Transfer] = []
        self._before, self._counted = no_numbers(), no_numbers()  # when it began to serve, and now
        self.stalled_s = 0.0  # for which the last reply waited for the worker's disk
        self._asked: tuple[Transfer, ByteArray] | None = None
        self._should_stop, self._awaits, self._given_up = should_stop, False, False
        self._heard_s, self._over = time.monotonic(), threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_pinging, name="ping", daemon=True),
            threading.Thread(target=self._watch, name="watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def group(self) -> Group:
        """For what is not asked by layers."""
        return self._group

    def own(self, keys: IntArray, shape: MoeShape) -> None:
        """Tells the worker which experts are its own from now on, and waits until it is ready. Raises LostError.

        shape: that of the routing, which may be of fewer experts a token than the model's.
        """
        mine = np.zeros(shape.num_keys, np.bool_)
        mine[keys] = True
        bits = np.packbits(mine)
        order(Kind.OWN, self._frame, len(bits), shape.top_k)
        self._expect(0)
        self._send(bits)
        self.collect()
        self._before = self._counted

    def ask(self, request: Request) -> None:
        """Sends a request; `collect` brings the reply where it has rows. Raises LostError."""
        for sent in self._sent:  # the frame is free again
            sent.wait(REPLY_S)
        self._sent.clear()
        if request.num_rows:
            self._expect(request.num_rows)  # first, so that the reply finds it waiting
        self._send(self._form.pack(request, self._frame))

    def collect(self) -> Float32Array:
        """The rows of the reply, good until the next `ask`. Raises LostError."""
        assert self._asked is not None
        (receipt, frame), self._asked = self._asked, None
        self._awaits = True
        try:
            receipt.wait(REPLY_S)
        except LostError:
            if self._given_up:
                raise LostError("it had not replied when the answer was to end") from None
            raise
        finally:
            self._awaits = False
        if fault := self._replies.fault(frame):
            raise LostError(fault)
        before, self._counted = self._counted, self._replies.numbers(frame)
        self.stalled_s = float(self._counted[STALL] - before[STALL])
        return self._replies.rows(frame)

    @property
    def counted(self) -> FloatArray:
        """What the worker has counted for this rank 0 by its last reply, as frames.numbers_of says it."""
        numbers: FloatArray = self._counted - self._before
        return numbers

    @property
    def is_asked(self) -> bool:
        """Whether a reply is to be collected."""
        return self._asked is not None

    def end(self) -> None:
        """Ends it, whatever is waited for."""
        if not self._over.is_set():
            self._over.set()
            self._group.break_off()

    def settle(self) -> None:
        """Waits for its threads once it has ended, but for a ping that nobody takes.

        torch ends the process where a thread gives back what is torch's after the interpreter has ended.
        """
        for thread in self._threads:
            thread.join(SETTLE_S)

    def leave(self) -> None:
        """Tells the worker that rank 0 has no more to ask."""
        try:
            for sent in self._sent:
                sent.wait(PING_S)
            self._sent.clear()
            order(Kind.LEAVE, self._frame)
            self._group.send(self._frame).wait(PING_S)
        except LostError:
            pass
        self.end()
        self.settle()

    def _expect(self, num_rows: int) -> None:
        frame = self._replies.frame(num_rows)
        self._asked = self._group.receive(frame), frame

    def _send(self, rest: ByteArray | None) -> None:
        self._sent.append(self._group.send(self._frame))
        if rest is not None:
            self._sent.append(self._group.send(rest, tag=1))

    def _keep_pinging(self) -> None:
        while not self._over.wait(PING_S):
            try:
                self._ping()
            except RuntimeError:  # the connection has ended, as the group's
                return
            self._heard_s = time.monotonic()

    def _watch(self) -> None:
        """A wait for a reply cannot be interrupted: what ends it is the end of the connection."""
        going_on_s = time.monotonic()  # when it was last seen that nobody waits for an answer that is to end
        while not self._over.wait(PING_S / 4):
            now_s = time.monotonic()
            if not (self._awaits and self._should_stop()):
                going_on_s = now_s
            self._given_up = now_s - going_on_s > STOP_S
            if self._given_up or now_s - self._heard_s > SILENT_S:
                self.end()


class Peer:
    """A worker's address, and the connection to it while there is one. A lost one is called again in the background."""

    def __init__(self, address: PeerAddress, connect: Callable[[PeerAddress], Connection]) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.num_owned = 0
        self._counted_before = no_numbers()  # by connections that have ended
        self._connect = connect
        self._returned: Connection | None = None
        self._calling: threading.Thread | None = None
        self._closed = threading.Event()

    def open(self) -> Connection:
        """Raises WorkerError, LostError."""
        self.connection = self._connect(self.address)
        return self.connection

    @property
    def counted(self) -> FloatArray:
        """What the worker has counted for this rank 0, as frames.numbers_of says it. From any thread."""
        connection, before = self.connection, self._counted_before
        return before if connection is None else before + connection.counted

    def drop(self, keys: IntArray, shape: MoeShape) -> None:
        """The connection is of no use any more; it is made anew, for the same experts."""
        if self.connection is not None:
            self._counted_before = self.counted
            self.connection.end()
            self.connection.settle()
            self.connection = None
        self._calling = threading.Thread(target=self._call_again, args=(keys, shape), name="rejoin", daemon=True)
        self._calling.start()

    def returned(self) -> bool:
        """Whether a worker that was lost is here again, and ready, since the last call."""
        if self._returned is None:
            return False
        self.connection, self._returned = self._returned, None
        return True

    def close(self) -> None:
        self._closed.set()
        for connection in (self.connection, self._returned):
            if connection is not None:
                connection.leave()
        self._counted_before, self.connection, self._returned = self.counted, None, None
        if self._calling is not None:
            self._calling.join(PING_S)

    def _call_again(self, keys: IntArray, shape: MoeShape) -> None:
        wait_s = FIRST_RETRY_S
        while not self._closed.wait(wait_s):
            wait_s = min(2 * wait_s, LAST_RETRY_S)
            try:
                connection = self._connect(self.address)
                connection.own(keys, shape)
            except (WorkerError, LostError):
                continue
            self._returned = connection
            if self._closed.is_set():  # meanwhile
                connection.leave()
            return
