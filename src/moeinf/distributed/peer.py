"""A worker, as rank 0 sees it: what it owns, what it was asked, and whether it is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from moeinf.distributed.frames import Kind, Request, RequestForm
from moeinf.distributed.link import Link, LostError
from moeinf.distributed.meeting import Facts, Offer, PeerAddress, call
from moeinf.distributed.replies import STALL, ReplyForm, no_numbers
from moeinf.errors import MoeinfError
from moeinf.types import ByteArray, Float32Array, FloatArray, IntArray, MoeShape

REPLY_S: Final = 60.0  # the longest that a layer of a worker may take; then it counts as lost
PING_S: Final = 1.0  # from one to the next
FIRST_RETRY_S: Final = 2.0  # until a lost worker is called again; doubled each time
LAST_RETRY_S: Final = 60.0
STOP_S: Final = 0.75  # for a reply to an answer that is to end; then its worker counts as lost
SILENT_S: Final = 5.0  # without a ping that came through: the worker's process stands still, or the network is gone


class Connection:
    """The way to a worker that is there, until it is lost. Used by one thread at a time."""

    def __init__(
        self,
        address: PeerAddress,
        key: bytes,
        facts: Facts,
        shape: MoeShape,
        width: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """shape: the model's. should_stop: whether the answer is to end that a reply is awaited for.

        Raises WorkerError where the worker refuses, LostError where nothing answers.
        """
        self.offer: Offer
        self.offer, self._link, self._pulse = call(address.host, address.port, key, facts)
        self._form, self._replies = RequestForm(shape, width), ReplyForm(width)
        self._frame: ByteArray = np.zeros(self._form.frame_bytes, np.uint8)
        self._before, self._counted = no_numbers(), no_numbers()  # when it began to serve, and now
        self.stalled_s = 0.0  # for which the last reply waited for the worker's disk
        self._asked: ByteArray | None = None  # the frame of the reply
        self._should_stop, self._stopping_s = should_stop, 0.0
        self._over = threading.Event()
        self._pinging = threading.Thread(target=self._keep_pinging, name="ping", daemon=True)
        self._pinging.start()

    @property
    def link(self) -> Link:
        """For what is not asked by layers."""
        return self._link

    def own(self, keys: IntArray, shape: MoeShape) -> None:
        """Tells the worker which experts are its own from now on, and waits until it is ready. Raises LostError.

        shape: that of the routing, which may be of fewer experts a token than the model's.
        """
        mine = np.zeros(shape.num_keys, np.bool_)
        mine[keys] = True
        self._send(self._form.pack_order(Kind.OWN, self._frame, mine, shape.top_k))
        self._asked = self._replies.frame(0)
        self.collect()
        self._before = self._counted

    def ask(self, request: Request) -> None:
        """Sends a request; `collect` brings the reply where it has rows. Raises LostError, and UsageError as packed."""
        self._send(self._form.pack(request, self._frame))
        if request.num_rows:
            self._asked = self._replies.frame(request.num_rows)

    def collect(self) -> Float32Array:
        """The rows of the reply, good until the next `ask`. Raises LostError."""
        assert self._asked is not None
        frame, self._asked = self._asked, None
        self._stopping_s = time.monotonic()
        self._link.receive(frame, REPLY_S, self._look)
        if fault := self._replies.fault(frame):
            raise LostError(fault)
        before, self._counted = self._counted, self._replies.numbers(frame)
        self.stalled_s = float(self._counted[STALL] - before[STALL])
        return self._replies.rows(frame)

    @property
    def counted(self) -> FloatArray:
        """What the worker has counted for this rank 0 by its last reply, as replies.numbers_of says it."""
        numbers: FloatArray = self._counted - self._before
        return numbers

    @property
    def is_asked(self) -> bool:
        """Whether a reply is to be collected."""
        return self._asked is not None

    def close(self) -> None:
        """Ends it, whatever the worker does."""
        self._over.set()
        self._pulse.break_off()
        self._pinging.join()
        self._link.close()
        self._pulse.close()

    def leave(self) -> None:
        """Tells the worker that rank 0 has no more to ask."""
        with suppress(LostError):
            self._form.pack_order(Kind.LEAVE, self._frame)
            self._link.send(self._frame, PING_S)
        self.close()

    def _send(self, rest: ByteArray | bytes | None) -> None:
        self._stopping_s = time.monotonic()
        self._link.send(self._frame, REPLY_S, self._look)
        if rest is not None:
            self._link.send(rest, REPLY_S, self._look)

    def _look(self) -> None:
        """Gives up a worker that an answer waits for which is to end."""
        now = time.monotonic()
        if not self._should_stop():
            self._stopping_s = now
        elif now - self._stopping_s > STOP_S:
            raise LostError("it had not replied when the answer was to end")

    def _keep_pinging(self) -> None:
        echo = bytearray(1)
        while not self._over.wait(PING_S):
            try:
                self._pulse.send(b".", SILENT_S)
                self._pulse.receive(echo, SILENT_S)
            except LostError as error:
                return self._link.break_off(str(error))


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
        """What the worker has counted for this rank 0, as replies.numbers_of says it. From any thread."""
        connection, before = self.connection, self._counted_before
        return before if connection is None else before + connection.counted

    def drop(self, keys: IntArray, shape: MoeShape) -> None:
        """The connection is of no use any more; it is made anew, for the same experts."""
        if self.connection is not None:
            self._counted_before = self.counted
            self.connection.close()
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
            except (MoeinfError, LostError):
                continue
            self._returned = connection
            if self._closed.is_set():  # meanwhile
                connection.leave()
            return
