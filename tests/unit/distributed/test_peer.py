"""A worker, as rank 0 sees it: what it replies is looked at, and it is called again while it is lost."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from moeinf.distributed import peer
from moeinf.distributed.frames import Request, RequestForm
from moeinf.distributed.link import Link, LostError
from moeinf.distributed.listener import Listener
from moeinf.distributed.meeting import Facts, Offer, PeerAddress
from moeinf.distributed.peer import Connection, Peer
from moeinf.distributed.replies import REPLY_HEAD_BYTES, ReplyForm, no_numbers
from moeinf.errors import StoreError, WorkerError
from moeinf.types import ByteArray, MoeShape

KEY, FACTS, SHAPE, WIDTH, SECONDS = b"a key that both have", Facts("1", "m", "x"), MoeShape(2, 4, 2), 4, 30.0
KEYS = np.array([0, 2])
Wrong = Callable[[ByteArray], None]


class Replying:
    """A worker that has the key: its replies are zeros, or what `wrong` makes of them."""

    def __init__(self) -> None:
        self.listener = Listener("127.0.0.1", 0, KEY)
        self.wrong: Wrong = lambda frame: None
        self.silent = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        link: Link | None
        while (link := self.listener.accept(FACTS, Offer(1, 1.0), self._ending.is_set)) is not None:
            try:
                self._reply_to_all(link)
            except LostError:
                link.close()

    def _reply_to_all(self, link: Link) -> None:
        form, replies = RequestForm(SHAPE, WIDTH), ReplyForm(WIDTH)
        frame: ByteArray = np.zeros(form.frame_bytes, np.uint8)
        while True:
            link.receive(frame, SECONDS)
            head = form.head(frame)
            link.receive(bytearray(head.rest_bytes), SECONDS)
            reply = replies.frame(head.num_rows)
            reply[:] = 0
            replies.say(reply, tuple(no_numbers().tolist()))
            self.wrong(reply)
            if not self.silent.is_set():
                link.send(reply, SECONDS)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.listener.close()


@pytest.fixture
def worker() -> Iterator[Replying]:
    made = Replying()
    yield made
    made.close()


@pytest.fixture
def connected(worker: Replying) -> Iterator[Connection]:
    connection = Connection(worker.listener.address, KEY, FACTS, SHAPE, WIDTH)
    yield connection
    connection.close()


def asked() -> Request:
    return Request(1, np.array([[0, 1]]), np.ones((1, WIDTH), np.float32), 1, 1)


def test_rows_come_as_they_were_sent(worker: Replying, connected: Connection) -> None:
    connected.own(KEYS, SHAPE)
    worker.wrong = lambda frame: frame[REPLY_HEAD_BYTES:].view(np.float32).fill(3)
    connected.ask(asked())
    assert connected.is_asked and (connected.collect() == np.full((1, WIDTH), 3)).all()


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        (lambda frame: struct.pack_into("=d", frame.data, 8, np.nan), "counts that cannot be meant"),
        (lambda frame: struct.pack_into("=d", frame.data, 8, -1.0), "counts that cannot be meant"),
        (lambda frame: struct.pack_into("=2i", frame.data, 0, 7, 0), "cannot be told whether it went well"),
        (lambda frame: frame[REPLY_HEAD_BYTES:].view(np.float32).fill(np.nan), "rows that are not finite"),
    ],
)
def test_a_reply_that_cannot_be_meant_loses_the_worker(
    worker: Replying, connected: Connection, wrong: Wrong, wanted: str
) -> None:
    connected.own(KEYS, SHAPE)
    worker.wrong = wrong
    connected.ask(asked())
    with pytest.raises(LostError, match=f"^it sent .*{wanted}"):
        connected.collect()


def test_a_pulse_that_does_not_come_back_ends_the_wait_for_rows(
    worker: Replying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "PING_S", 0.01)
    monkeypatch.setattr(peer, "SILENT_S", 0.1)
    connection = Connection(worker.listener.address, KEY, FACTS, SHAPE, WIDTH)
    connection.own(KEYS, SHAPE)
    worker.silent.set()
    connection.ask(asked())
    goes_on = threading.Event()
    monkeypatch.setattr(worker.listener, "_look_at_clock", goes_on.wait)  # its thread stands still
    with pytest.raises(LostError, match="it does not answer"):
        connection.collect()
    goes_on.set()
    connection.close()


def test_a_reply_is_given_up_for_an_answer_that_is_to_end(worker: Replying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "STOP_S", 0.05)
    stopping = threading.Event()
    connection = Connection(worker.listener.address, KEY, FACTS, SHAPE, WIDTH, stopping.is_set)
    connection.own(KEYS, SHAPE)
    worker.silent.set()
    connection.ask(asked())
    stopping.set()
    with pytest.raises(LostError, match="it had not replied when the answer was to end"):
        connection.collect()
    connection.close()


def test_a_request_that_nobody_takes_is_given_up_for_an_answer_that_is_to_end(
    worker: Replying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "STOP_S", 0.05)
    connection = Connection(worker.listener.address, KEY, FACTS, SHAPE, WIDTH, lambda: True)
    waiting, goes_on = threading.Event(), threading.Event()

    def stand_still(frame: ByteArray) -> None:
        waiting.set()
        goes_on.wait(SECONDS)

    worker.wrong = stand_still
    connection.ask(asked())
    assert waiting.wait(SECONDS)
    many = 1 << 19  # tokens: more than the system keeps for a worker that takes nothing
    rows = np.zeros((many, WIDTH), np.float32)
    with pytest.raises(LostError, match="it had not replied when the answer was to end"):
        connection.ask(Request(1, np.ones((many, 2), np.int64), rows, many, 0))
    goes_on.set()
    connection.close()


@pytest.mark.parametrize("error", [LostError("nothing answers"), WorkerError("it refuses"), StoreError("unreadable")])
def test_a_worker_is_called_again_whatever_a_call_has_met(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(peer, "LAST_RETRY_S", 0.001)

    class There:
        """moeinf.distributed.peer.Connection that does nothing."""

        def own(self, *_: Any) -> None:
            pass

        def leave(self) -> None:
            pass

    calls, there = [error, error], threading.Event()

    def connect(address: PeerAddress) -> Any:
        if calls:
            raise calls.pop()
        there.set()
        return There()

    lost = Peer(PeerAddress("127.0.0.1", 1), connect)
    lost.drop(KEYS, SHAPE)
    assert there.wait(SECONDS)
    lost.close()
