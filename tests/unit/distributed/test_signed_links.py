"""What a link whose messages are signed takes for the other's, and what not."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from moeinf.distributed.link import MAC_BYTES, Link, LostError, MalformedError
from moeinf.distributed.proof import Keys

SECONDS = 10.0
RANK_0, WORKER = Keys(b"a" * 32, b"b" * 32), Keys(b"b" * 32, b"a" * 32)
MESSAGES = b"the first", b"the other", b"the third"  # of one length each
STEP = len(MESSAGES[0]) + MAC_BYTES


class Wire:
    """Two signed ends, and what is between them: what rank 0 sends can be read and changed before it comes."""

    def __init__(self) -> None:
        self._sockets = *socket.socketpair(), *socket.socketpair()
        self.rank_0, self.worker = Link(self._sockets[0], RANK_0), Link(self._sockets[3], WORKER)
        self.tap, self.feed = self._sockets[1:3]

    def sent(self, num_bytes: int) -> bytes:
        return self.tap.recv(num_bytes, socket.MSG_WAITALL)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    for each in made._sockets:
        each.close()


def read(link: Link, num_bytes: int) -> bytes:
    link.receive(data := bytearray(num_bytes), SECONDS)
    return bytes(data)


@pytest.mark.parametrize("num_bytes", [1, 1 << 16, (1 << 16) + 1])
def test_messages_of_any_size_come_as_they_were_sent_both_ways(num_bytes: int) -> None:
    ends = socket.socketpair()
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    rank_0, worker = Link(ends[0], RANK_0), Link(ends[1], WORKER)
    data = np.arange(num_bytes, dtype=np.uint32).astype(np.uint8)
    for _ in range(2):
        for one, other in ((rank_0, worker), (worker, rank_0)):
            one.send(b"", SECONDS)  # nothing, of which the other knows nothing
            one.send(data, SECONDS)
            assert read(other, num_bytes) == data.tobytes()
    for link in (rank_0, worker):
        link.close()


@pytest.mark.parametrize("at", [0, len(MESSAGES[0]) - 1, len(MESSAGES[0]), STEP - 1])
def test_a_bit_that_was_changed_is_noticed(wire: Wire, at: int) -> None:
    wire.rank_0.send(MESSAGES[0], SECONDS)
    changed = bytearray(wire.sent(STEP))
    changed[at] ^= 16
    wire.feed.sendall(changed)
    with pytest.raises(MalformedError, match="was changed on its way"):
        read(wire.worker, len(MESSAGES[0]))


@pytest.mark.parametrize(
    "altered",
    [
        lambda first, other, third: first + first,
        lambda first, other, third: other + first,
        lambda first, other, third: first + third,
        lambda first, other, third: first + other[:-MAC_BYTES] + first[-MAC_BYTES:],
    ],
    ids=["repeated", "in another order", "one left out", "the MAC of another"],
)
def test_messages_that_are_not_the_next_ones_are_noticed(wire: Wire, altered: Callable[..., bytes]) -> None:
    for message in MESSAGES:
        wire.rank_0.send(message, SECONDS)
    wire.feed.sendall(altered(*(wire.sent(STEP) for _ in MESSAGES)))
    with pytest.raises(MalformedError, match="was changed on its way"):
        for _ in MESSAGES:
            read(wire.worker, len(MESSAGES[0]))


def test_what_is_sent_back_is_not_the_other_s(wire: Wire) -> None:
    wire.rank_0.send(MESSAGES[0], SECONDS)
    wire.tap.sendall(wire.sent(STEP))
    with pytest.raises(MalformedError):
        read(wire.rank_0, len(MESSAGES[0]))


def test_a_message_that_is_cut_off_is_lost(wire: Wire) -> None:
    wire.rank_0.send(MESSAGES[0], SECONDS)
    wire.feed.sendall(wire.sent(STEP)[:-1])
    wire.feed.close()
    with pytest.raises(LostError, match="connection has ended"):
        read(wire.worker, len(MESSAGES[0]))
