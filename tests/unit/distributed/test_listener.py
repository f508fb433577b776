"""A worker's address: who has the key comes in, whatever others do there, and others do no harm."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from moeinf.distributed import listener as of_listener
from moeinf.distributed.link import Link, LostError
from moeinf.distributed.listener import MOST_VISITORS, Listener
from moeinf.distributed.meeting import MEET_S, Facts, Offer, call
from moeinf.distributed.proof import ANSWER_BYTES, GREETING_BYTES, Caller, Purpose
from moeinf.errors import UsageError, WorkerError

KEY, FACTS, OFFER, SECONDS = b"a key that both have", Facts("1", "m", "x"), Offer(3, 1.5), 30.0


class Open:
    """A listener, and what it has said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.said = threading.Event()
        self.listener = Listener("127.0.0.1", 0, KEY, self._say)
        self.where = (self.listener.address.host, self.listener.address.port)

    def _say(self, line: str) -> None:
        self.lines.append(line)
        self.said.set()

    def stranger(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(self.where, SECONDS)
        made.sendall(sent)
        return made

    def meets(self) -> tuple[Link, Link]:
        """A rank 0 comes, and is served: the link to the worker, and the worker's own."""
        arrived: list[Link | None] = []
        accepting = threading.Thread(target=lambda: arrived.append(self.listener.accept(FACTS, OFFER, lambda: False)))
        accepting.start()
        offer, link, self.pulse = call(*self.where, KEY, FACTS)
        accepting.join(SECONDS)
        assert offer == OFFER and arrived[0] is not None
        return link, arrived[0]


@pytest.fixture
def opened() -> Iterator[Open]:
    made = Open()
    with made.listener:
        yield made


def exchange(one: Link, other: Link) -> None:
    for sender, receiver in ((one, other), (other, one)):
        sender.send(b"rows", SECONDS)
        receiver.receive(got := bytearray(4), SECONDS)
        assert got == b"rows"


def closed(connected: socket.socket) -> bool:
    """Whether the listener ends it within the test's patience."""
    connected.settimeout(SECONDS)
    try:
        return connected.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x1b]0;title\x07\x1b[31m",
        bytes(100_000),
        Caller(KEY, Purpose.SERVE, b"").greeting + bytes(100_000),
        Caller(b"another key", Purpose.SERVE, b"").greeting + b"[" * 60_000,
    ],
    ids=["http", "tls", "escapes", "zeros", "greeting-and-more", "deep"],
)
def test_a_stranger_is_refused_quietly_and_rank_0_comes_in(opened: Open, sent: bytes) -> None:
    stranger = socket.create_connection(opened.where, SECONDS)
    with suppress(ConnectionError):  # refused while it speaks
        stranger.sendall(sent)
    exchange(*opened.meets())
    while not closed(stranger):
        pass  # a greeting comes first, where one was sent
    assert opened.said.wait(SECONDS)
    assert len(opened.lines) == 1 and opened.lines[0].startswith("refused 127.0.0.1: it does not ")
    assert opened.lines[0].isprintable()
    stranger.close()


def test_silent_strangers_do_not_delay_rank_0(opened: Open) -> None:
    half = Caller(KEY, Purpose.SERVE, b"").greeting[:20]
    strangers = [opened.stranger(half if number % 2 else b"") for number in range(MOST_VISITORS + 40)]
    began_s = time.monotonic()
    exchange(*opened.meets())
    assert time.monotonic() - began_s < MEET_S  # not when their time was over
    assert closed(strangers[0])  # there were too many
    for each in strangers:
        each.close()


def test_a_flood_puts_out_its_own(opened: Open) -> None:
    other = opened.stranger()
    other.close()
    patient = socket.create_connection(opened.where, SECONDS, source_address=("127.0.0.2", 0))
    flood = [opened.stranger() for _ in range(2 * MOST_VISITORS)]
    assert closed(flood[0])
    rank_0 = Caller(KEY, Purpose.SERVE, FACTS.packed())
    patient.sendall(rank_0.greeting)
    patient.settimeout(SECONDS)
    assert len(patient.recv(GREETING_BYTES)) == GREETING_BYTES
    for each in (patient, *flood):
        each.close()


def test_a_stranger_is_put_out_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_listener, "MEET_S", 0.2)
    opened = Open()
    with opened.listener:
        assert closed(opened.stranger(b"moeinf-w"))


def test_a_flood_of_strangers_is_few_lines(opened: Open) -> None:
    for _ in range(50):
        stranger = opened.stranger(b"\x1b[2J")
        assert closed(stranger)
        stranger.close()
    assert len(opened.lines) == 1
    opened.listener._told_s = float("-inf")
    opened.said.clear()
    opened.stranger(b"\x1b[2J").close()
    assert opened.said.wait(SECONDS) and opened.lines[1].endswith("(and 49 others before)")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ECONNABORTED, errno.EPROTO])
def test_a_visitor_that_the_system_does_not_let_in_ends_nothing(opened: Open, number: int) -> None:
    class Failing:
        """Its first calls fail."""

        def __init__(self, listening: socket.socket) -> None:
            self.listening, self.left = listening, 3

        def accept(self) -> Any:
            if self.left:
                self.left -= 1
                raise OSError(number, "as the system says")
            return self.listening.accept()

        def close(self) -> None:
            self.listening.close()

    silent = opened.stranger()
    opened.listener._socket = failing = Failing(opened.listener._socket)  # type: ignore[assignment]
    exchange(*opened.meets())
    assert failing.left == 0
    assert [line for line in opened.lines if "cannot be let in: as the system says; " in line] == opened.lines
    silent.close()


def test_a_visitor_that_cannot_be_waited_for_ends_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system bounds what a user's processes wait for by epoll."""
    register, left = opened.listener._selector.register, [1, 2, 3]

    def fail_first(*given: Any) -> Any:
        if left and left.pop():
            raise OSError(errno.ENOSPC, "as the system says")
        return register(*given)

    monkeypatch.setattr(opened.listener._selector, "register", fail_first)
    assert all(closed(opened.stranger()) for _ in range(3))
    assert "a visitor cannot be let in: as the system says; " in opened.lines[0]
    exchange(*opened.meets())


def test_a_reader_of_lines_that_has_gone_ends_nothing(opened: Open) -> None:
    def fail(line: str) -> None:
        opened.said.set()
        raise BrokenPipeError

    opened.listener._say = fail
    opened.stranger(b"x").close()
    assert opened.said.wait(SECONDS)
    exchange(*opened.meets())


# ---- rank 0


def test_the_pulse_comes_back_and_its_end_is_that_of_the_session(opened: Open) -> None:
    link, there = opened.meets()
    opened.pulse.send(b".", SECONDS)
    opened.pulse.receive(bytearray(1), SECONDS)
    opened.pulse.close()
    with pytest.raises(LostError, match="its connection has ended"):
        there.receive(bytearray(1), SECONDS)
    link.close()
    exchange(*opened.meets())  # the next one


def test_a_rank_0_without_a_pulse_is_gone(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_listener, "SILENT_S", 0.2)
    _, there = opened.meets()
    with pytest.raises(LostError, match="it does not answer"):
        there.receive(bytearray(1), SECONDS)


def test_a_second_rank_0_is_refused_and_the_first_goes_on(opened: Open) -> None:
    links = opened.meets()
    with pytest.raises(WorkerError, match="it refuses: it serves another process"):
        call(*opened.where, KEY, FACTS)
    exchange(*links)


def test_facts_that_differ_are_refused_and_said(opened: Open) -> None:
    ending = threading.Event()
    accepting = threading.Thread(target=lambda: opened.listener.accept(FACTS, OFFER, ending.is_set))
    accepting.start()
    for theirs, wanted in (
        (Facts("2", "m", "x"), "it runs moeinf 1, rank 0 2; install the same on both"),
        (Facts("1", "n", "x"), "it has another model"),
        (Facts("1", "m", "y"), "its kernels are those of x, rank 0's of y"),
    ):
        with pytest.raises(WorkerError, match=f"it refuses: {wanted}"):
            call(*opened.where, KEY, theirs)
        assert wanted in opened.lines[-1]
    ending.set()
    accepting.join(SECONDS)
    assert not accepting.is_alive()


@pytest.mark.parametrize("purpose", [Purpose.PULSE, 7])
def test_a_purpose_that_is_none_is_refused(opened: Open, purpose: int) -> None:
    rank_0: Any = Caller(KEY, purpose, b"no session")  # type: ignore[arg-type]
    link = Link(opened.stranger(rank_0.greeting))
    link.receive(greeting := bytearray(GREETING_BYTES), SECONDS)
    link.send(rank_0.proof(bytes(greeting)), SECONDS)
    link.receive(answer := bytearray(ANSWER_BYTES), SECONDS)
    assert rank_0.said(bytes(answer))[0] == 0
    exchange(*opened.meets())


def test_a_rank_0_that_comes_early_waits(opened: Open) -> None:
    met: list[Any] = []
    calling = threading.Thread(target=lambda: met.append(call(*opened.where, KEY, FACTS)))
    calling.start()
    while not any(each.visitor.is_proved for each in list(opened.listener._guests.values())):
        time.sleep(0.01)
    assert opened.listener.accept(FACTS, OFFER, lambda: False) is not None
    calling.join(SECONDS)
    assert met[0][0] == OFFER


def test_what_nobody_expected_of_the_listener_is_raised_where_it_is_waited_for(opened: Open) -> None:
    def fail() -> None:
        raise ValueError("of the selector")

    opened.listener._look_at_clock = fail  # type: ignore[method-assign]
    opened.stranger().close()
    with pytest.raises(ValueError, match="of the selector"):
        opened.listener.accept(FACTS, OFFER, lambda: False)


# ---- where it listens

EVERY = ["0", "0.0.0.0", "000.0.0.0", "0x0", "0.0", "::", "::0", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "::ffff:0:0"]


@pytest.mark.parametrize("host", EVERY)
def test_every_address_is_refused_however_it_is_written(host: str) -> None:
    with pytest.raises(UsageError, match="is every address of this machine; give the one that rank 0 comes to"):
        Listener(host, 0, KEY)


def test_a_name_of_every_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **options: real("0.0.0.0", *rest, **options))
    with pytest.raises(UsageError, match=r"--bind anywhere\.example:0 is every address"):
        Listener("anywhere.example", 0, KEY)


@pytest.mark.parametrize("host", ["203.0.113.9", "no such name", "a" * 99 + ".example", "x\0y"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(WorkerError, match="give an address of this machine"):
        Listener(host, 0, KEY)


def test_a_name_that_has_both_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = socket.getaddrinfo

    def both(host: str, *rest: Any, **options: Any) -> Any:
        return [*real("::1", *rest, **options), *real("127.0.0.1", *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with Listener("both.example", 0, KEY) as made:
        assert made.address.host == "127.0.0.1"


def test_ipv6_is_written_in_brackets() -> None:
    try:
        made = Listener("::1", 0, KEY)
    except WorkerError:
        pytest.skip("no IPv6 here")
    with made:
        assert str(made.address).startswith("[::1]:")
