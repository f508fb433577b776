"""What the campaign puts between rank 0 and a worker does what it says, and a step of it finds nothing wrong."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.campaign import cables
from tests.support.campaign.step import Turn
from tests.support.ranks.cable import Cable

SENT = bytes(range(200))


@pytest.fixture
def cable() -> Iterator[Cable]:
    """One whose far end sends back what comes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connected: socket.socket) -> None:
        with suppress(OSError), connected:
            while data := connected.recv(1000):
                connected.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    made = Cable(f"127.0.0.1:{listener.getsockname()[1]}", random.Random(1))
    yield made
    made.close()
    listener.close()


def connected(cable: Cable) -> socket.socket:
    host, port = cable.address.split(":")
    return socket.create_connection((host, int(port)), 10)


def echo(there: socket.socket, count: int = len(SENT)) -> bytes:
    there.sendall(SENT)
    found = b""
    while len(found) < count and (data := there.recv(1000)):
        found += data
    return found


def test_a_cable_passes_on_what_it_is_given(cable: Cable) -> None:
    with connected(cable) as one, connected(cable) as other:
        assert echo(one) == echo(other) == SENT
    assert cable.changed == 0


def test_a_bit_is_flipped_once(cable: Cable) -> None:
    with connected(cable) as there:
        cable.change(partial(cables.flipped, rng=random.Random(2)))
        different = [a ^ b for a, b in zip(echo(there), SENT, strict=True) if a != b]
        assert len(different) == 1 and different[0].bit_count() == 1 and cable.changed == 1
        assert echo(there) == SENT


def test_bytes_are_lost_and_sent_again(cable: Cable) -> None:
    with connected(cable) as there:
        assert echo(there) == SENT
        cable.change(lambda data: data + data)
        assert echo(there, 2 * len(SENT)) == SENT + SENT
        cable.change(lambda data: cable.sent_before() or data)
        assert echo(there).startswith(SENT)
    assert all(len(cables.shortened(SENT, random.Random(seed))) < len(SENT) for seed in range(50))


def test_a_cable_is_held_and_cut_and_mended(cable: Cable) -> None:
    with connected(cable) as there:
        assert echo(there) == SENT
        cable.hold()
        there.sendall(SENT)
        there.settimeout(0.3)
        with pytest.raises(TimeoutError):
            there.recv(1)
        cable.mend()
        there.settimeout(10)
        assert there.recv(1) == SENT[:1]
        cable.cut()
        with suppress(ConnectionError):
            while there.recv(1000):
                pass
    with connected(cable) as there, suppress(ConnectionError):
        assert there.recv(1) == b"", "it is refused"
    cable.mend()
    with connected(cable) as there:
        assert echo(there) == SENT


def test_a_clock_is_days_off_or_as_it_is() -> None:
    assert cables.clock_apart(86400)[:2] in ((), ("unshare", "--time"))


def test_a_step_finds_that_tokens_stay_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cables, "_CALM", 3)
    done = cables.cables(Turn(random.Random(1), list(cables.MISHAPS).index("a bit flipped"), tmp_path, 0.0))
    assert done.faults == [] and done.counts["cable: answers, each the one of one machine"] == 3
    assert done.counts["cable: a bit flipped"] == done.counts["cable: bytes lost"] == 1


def test_a_step_finds_another_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(1000))
    monkeypatch.setattr(cables, "_CALM", 1)
    monkeypatch.setattr(cables, "_tokens", lambda model, prompt: [next(answers)])
    done = cables.cables(Turn(random.Random(1), 0, tmp_path, 0.0))
    assert len(done.faults) == 1 and "was answered by" in done.faults[0]
