"""A worker obeys the rank 0 that it serves, says what becomes of it, and ends when it is told to."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from moeinf.distributed import serving
from moeinf.distributed.frames import Head, Kind, Request, RequestForm
from moeinf.distributed.link import Link
from moeinf.distributed.meeting import Facts, Offer
from moeinf.distributed.replies import ReplyForm, no_numbers
from moeinf.distributed.serving import Session, WorkerServer
from moeinf.errors import StoreError
from moeinf.runtime.cache.table import BoolArray
from moeinf.types import ByteArray, Float32Array, MoeShape

SHAPE, WIDTH, SECONDS = MoeShape(3, 8, 2), 4, 30.0
MINE = np.arange(SHAPE.num_keys) % 2 == 0


class Experts:
    """moeinf.distributed.serving.ServedExperts whose rows are the layer's number."""

    fault: Exception | None = None

    def only(self, mine: BoolArray, top_k: int) -> None:
        self.mine = mine

    def run(self, request: Request, rows: Float32Array) -> None:
        if self.fault is not None:
            raise self.fault
        rows[:] = request.layer

    def counted(self) -> tuple[float, ...]:
        return tuple(no_numbers().tolist())

    def end(self) -> None:
        self.has_ended = True


class Rank0:
    """What asks a session that runs in a thread of its own."""

    def __init__(self, experts: Experts) -> None:
        ends = socket.socketpair()
        self.link, there = Link(ends[0]), Link(ends[1])
        self.form, self.replies, self.said = RequestForm(SHAPE, WIDTH), ReplyForm(WIDTH), ""
        self.frame: ByteArray = np.zeros(self.form.frame_bytes, np.uint8)
        session = Session(there, RequestForm(SHAPE, WIDTH), ReplyForm(WIDTH), experts)
        self._thread = threading.Thread(target=lambda: setattr(self, "said", session.serve()))
        self._thread.start()

    def order(self, kind: Kind, **options: Any) -> None:
        rest = self.form.pack_order(kind, self.frame, **options)
        self.link.send(self.frame, SECONDS)
        self.link.send(rest, SECONDS)

    def own(self) -> ByteArray:
        self.order(Kind.OWN, mine=MINE, top_k=2)
        return self.reply(0)

    def ask(self, ids: list[int], num_rows: int) -> None:
        asked = Request(1, np.array([ids]), np.ones((1, WIDTH), np.float32), 1, num_rows)
        self.form.pack(asked, self.frame)
        self.link.send(self.frame, SECONDS)

    def reply(self, num_rows: int) -> ByteArray:
        frame = self.replies.frame(num_rows)
        self.link.receive(frame, SECONDS)
        return frame

    def ended(self) -> str:
        self._thread.join(SECONDS)
        return self.said


@pytest.fixture
def experts() -> Experts:
    return Experts()


@pytest.fixture
def rank_0(experts: Experts) -> Iterator[Rank0]:
    made = Rank0(experts)
    yield made
    made.link.close()
    made.ended()


def test_rows_come_for_what_is_asked(rank_0: Rank0, experts: Experts) -> None:
    assert rank_0.replies.fault(rank_0.own()) == "" and np.array_equal(experts.mine, MINE)
    for _ in range(2):
        rank_0.ask([2, 5], num_rows=1)
        frame = rank_0.reply(1)
        assert rank_0.replies.fault(frame) == "" and (rank_0.replies.rows(frame) == 1).all()
    rank_0.order(Kind.LEAVE)
    assert rank_0.ended() == "rank 0 has gone: it has no more to ask" and experts.has_ended


def test_an_expert_that_cannot_be_read_is_told(rank_0: Rank0, experts: Experts) -> None:
    rank_0.own()
    experts.fault = StoreError("expert 2 is unreadable")
    rank_0.ask([2, 4], num_rows=2)
    assert rank_0.replies.fault(rank_0.reply(2)) == "expert 2 is unreadable"
    experts.fault = None
    rank_0.ask([2, 4], num_rows=2)
    assert rank_0.replies.fault(rank_0.reply(2)) == ""


def ask_too_early(rank_0: Rank0) -> None:
    rank_0.ask([2, 5], num_rows=1)


def count_other_rows(rank_0: Rank0) -> None:
    rank_0.own()
    rank_0.ask([2, 4], num_rows=1)


def ask_for_another_top_k(rank_0: Rank0) -> None:
    rank_0.own()
    rank_0.ask([2, 4, 5], num_rows=2)


def send_another_kind(rank_0: Rank0) -> None:
    struct.pack_into("=10i", rank_0.frame.data, 0, *Head(9))
    rank_0.link.send(rank_0.frame, SECONDS)


@pytest.mark.parametrize("wrong", [ask_too_early, count_other_rows, ask_for_another_top_k, send_another_kind])
def test_a_message_that_cannot_be_meant_ends_the_session_alone(rank_0: Rank0, wrong: Callable[[Rank0], None]) -> None:
    wrong(rank_0)
    assert rank_0.ended().startswith("rank 0 is not served any more: it ")


def test_what_there_is_no_memory_for_ends_the_session_alone(rank_0: Rank0, experts: Experts) -> None:
    rank_0.own()
    experts.fault = MemoryError()
    rank_0.ask([2, 4], num_rows=2)
    assert "there is no memory for what it asks" in rank_0.ended()


class Visited:
    """Of moeinf.distributed.listener.Listener what a server calls: rank 0 is here."""

    def accept(self, *_: Any) -> Link:
        return Link(socket.socketpair()[0])


def server_of(listener: Any) -> WorkerServer:
    experts: Any = None
    return WorkerServer(listener, Facts("", "", ""), Offer(1, 1.0), experts, lambda line: None)


def test_what_nobody_expected_ends_the_worker_while_rank_0_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __init__(self, *_: Any) -> None:
            pass

        def serve(self) -> str:
            raise ValueError("of a kernel")

    monkeypatch.setattr(serving, "Session", Failing)
    with pytest.raises(ValueError, match="of a kernel"):
        server_of(Visited()).run(RequestForm(SHAPE, WIDTH), ReplyForm(WIDTH))


def test_an_interrupt_does_not_wait_for_a_layer_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    computing, let_go = threading.Event(), threading.Event()

    class Hanging:
        def __init__(self, *_: Any) -> None:
            pass

        def serve(self) -> str:
            computing.set()
            let_go.wait()
            return ""

    class Thread(threading.Thread):
        """Of which the first wait is interrupted once the other one computes."""

        interrupted = False

        def join(self, timeout: float | None = None) -> None:
            if not Thread.interrupted:
                Thread.interrupted = computing.wait()
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(serving, "Session", Hanging)
    monkeypatch.setattr(threading, "Thread", Thread)
    began_s = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            server_of(Visited()).run(RequestForm(SHAPE, WIDTH), ReplyForm(WIDTH))
        assert time.monotonic() - began_s < 10  # it is given a second; it once was thirty
    finally:
        let_go.set()
