"""Clients that nobody would want, by the hundred: a server goes on for the others, and afterwards all is as before.

Connections stand idle, heads and bodies drip, clients do not read, or are gone at any moment of a request, and more ask
than may wait.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from moeinf.pull.pull import ensure
from tests.support.campaign.served import resident_bytes, served
from tests.support.campaign.step import Done, Turn

_MODEL: Final = "demo"
_ASKED: Final = {"model": _MODEL, "prompt": "The king said", "options": {"num_predict": 6, "temperature": 0}}
_LONG: Final = {"model": _MODEL, "prompt": "Once upon a time", "options": {"num_predict": 400, "temperature": 0}}
_HEAD_S, _BODY_S, _UNREAD_S = 10.0, 30.0, 60.0  # after which the server cuts off: connections.py, guard.py
_STARVED_S: Final = 30.0  # beyond these, on a machine that others use
_IDLE, _DRIPS, _READERS, _GONE, _MORE = 2000, 500, 20, 250, 120
_QUEUE: Final = 32  # requests that may wait
_CONNECTION_BYTES: Final = 64 << 10  # that one may take, with a request of its own
_POOLED: Final = 16  # threads of pools, which grow to that


@dataclass
class Stranger:
    """A server, and what was seen of it."""

    url: tuple[str, int]
    process: int
    rng: random.Random
    wanted: Any = None
    threads: int = 0  # at first
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: object = None, patience_s: float = 180.0) -> tuple[int, str, float]:
        """The status, the text, and how many seconds to wait the server advises."""
        connection = http.client.HTTPConnection(*self.url, timeout=patience_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(), float(response.headers.get("Retry-After", 0))
        finally:
            connection.close()

    def check_served(self, when: str) -> None:
        """Somebody who means it gets the answer that is right."""
        status, text, _ = self.ask("POST", "/api/generate", _ASKED | {"stream": False})
        answer = json.loads(text).get("response") if status == 200 else text
        self.wanted = self.wanted or answer
        if status != 200 or answer != self.wanted:
            self.faults.append(f"{when}: {status} {answer!r}, not {self.wanted!r}")
        status, text, _ = self.ask("GET", "/health")
        if status != 200:
            self.faults.append(f"{when}: /health: {status} {text}")

    def open(self, head: bytes = b"", receive_bytes: int = 0) -> socket.socket:
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(120)
        connection.bind((f"127.0.0.{self.rng.randint(2, 250)}", 0))  # as if many machines were behind it
        connection.connect(self.url)
        connection.sendall(head)
        return connection

    def rest(self) -> tuple[int, int]:
        """Open files and threads of the server, once nobody is there any more and nothing runs."""
        end, found = time.monotonic() + 60, (0, 0)
        while time.monotonic() < end:
            text = self.ask("GET", "/metrics")[1]
            busy = sum(float(each) for each in re.findall(r"^moeinf_(?:waiting|running)_requests (\S+)$", text, re.M))
            process = Path(f"/proc/{self.process}")
            before, found = found, (len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())))
            if not busy and before == found:
                return found
            time.sleep(0.5)
        self.faults.append("requests run or wait though nobody has asked")
        return found


def strangers(turn: Turn) -> Done:
    """One kind of them after the other, until the time is over."""
    ensure(_MODEL, home=turn.folder / "home")
    options, begun = ("--max-queue", str(_QUEUE), "--parallel", str(turn.rng.choice((1, 2, 4)))), time.monotonic()
    with served(turn.folder, turn.folder / "home", options) as (process, url):
        stranger = Stranger(url, process.pid, turn.rng)
        stranger.check_served("at first")
        _, stranger.threads = stranger.rest()
        kinds = list(_KINDS)
        for number in range(turn.number, turn.number + 1000):
            what = kinds[number % len(kinds)]
            _tried(stranger, what, _KINDS[what])
            if time.monotonic() - begun > turn.seconds:
                break
        if process.poll() is not None:
            stranger.faults.append(f"the server ended with {process.returncode}")
        log = (turn.folder / "log").read_text(errors="replace")
    if "Traceback" in log:
        stranger.faults.append(f"a traceback in the log: {log[log.index('Traceback') :][:4000]}")
    return Done(Counter({f"stranger: {what}": count for what, count in stranger.counts.items()}), stranger.faults)


def _tried(stranger: Stranger, what: str, act: Callable[[Stranger], int]) -> None:
    files, _ = stranger.rest()
    stranger.counts[what] += act(stranger)
    stranger.check_served(f"behind {what}")
    left, running = stranger.rest()
    if left > files + 4 or running > stranger.threads + _POOLED:
        stranger.faults.append(f"{what}: {files} open files became {left}, {stranger.threads} threads {running}")


@contextmanager
def _many(stranger: Stranger, count: int, *given: Any) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(stranger.open(*given)) for _ in range(count)]


def _ended(connections: Sequence[socket.socket], until: float) -> int:
    """How many of them the server has ended by then."""
    ended = 0
    for connection in connections:
        with suppress(OSError):
            connection.settimeout(max(0.01, until - time.monotonic()))
            with suppress(ConnectionResetError):
                while connection.recv(1 << 16):
                    pass
            ended += 1
    return ended


def _stand_idle(stranger: Stranger) -> int:
    before, begun = resident_bytes(stranger.process), time.monotonic()
    with _many(stranger, _IDLE) as connections:
        stranger.check_served("beside idle connections")
        grown = resident_bytes(stranger.process) - before
        ended = _ended(connections, begun + _HEAD_S + _STARVED_S)
    if ended < _IDLE:
        stranger.faults.append(f"{_IDLE - ended} of {_IDLE} idle connections are still open")
    if grown > _IDLE * _CONNECTION_BYTES:
        stranger.faults.append(f"{_IDLE} idle connections take {grown >> 10} KiB")
    return _IDLE


def _drip(stranger: Stranger) -> int:
    """Half of them a head, half a body, a byte at a time."""
    host = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\n"
    bodies = host + b"Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n{"
    begun = time.monotonic()
    with _many(stranger, _DRIPS // 2, host) as heads, _many(stranger, _DRIPS // 2, bodies) as others:
        left, pieces = {*heads, *others}, 0
        while left and time.monotonic() < begun + _BODY_S + _STARVED_S:
            for connection in list(left):
                try:
                    connection.sendall(b"x")
                    pieces += 1
                except OSError:  # it was cut off
                    left.discard(connection)
            time.sleep(1.0)
            if pieces % 7 == 0:
                stranger.check_served("beside drips")
    if left:
        stranger.faults.append(f"{len(left)} of {_DRIPS} clients that drip are still served")
    return _DRIPS


def _do_not_read(stranger: Stranger) -> int:
    """They ask for long answers with all that can be said of each token, and take none of it."""
    body = json.dumps({"model": _MODEL, "prompt": "Once", "max_tokens": 400, "stream": True, "logprobs": 5}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with _many(stranger, _READERS, asked, 2048):
        stranger.check_served("beside clients that do not read")
        time.sleep(stranger.rng.uniform(0, 5))
    return _READERS


def _are_gone(stranger: Stranger) -> int:
    """At any moment of a request, by a reset or by an end, whole and streamed."""
    rng = stranger.rng
    for _ in range(_GONE):
        body = json.dumps(rng.choice((_ASKED, _LONG)) | {"stream": rng.random() < 0.5}).encode()
        head = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        connection = stranger.open(whole[: rng.choice((len(whole), len(whole), rng.randrange(len(whole))))])
        if rng.random() < 0.5:
            time.sleep(rng.choice((0, 0.01, 0.05, 0.3)))
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    return _GONE


def _are_too_many(stranger: Stranger) -> int:
    """Each is answered, or told to come again, and when; nothing else."""
    seen, threads = Counter[str](), list[threading.Thread]()

    def ask() -> None:
        status, text, again_s = stranger.ask("POST", "/api/generate", _ASKED | {"stream": False})
        right = status == 200 and json.loads(text)["response"] == stranger.wanted
        seen["right" if right else "later" if status == 503 and again_s > 0 else f"{status} {text}"] += 1

    for _ in range(_MORE):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    for thread in threads:
        thread.join()
    others = seen.keys() - {"right", "later"}
    if others or not seen["right"] or seen.total() < _MORE:
        stranger.faults.append(f"of {_MORE} requests at once: {dict(seen)}")
    stranger.counts["requests that were told when to come again"] += seen["later"]
    return _MORE


_KINDS: Final[dict[str, Callable[[Stranger], int]]] = {
    "connections that stand idle": _stand_idle,
    "clients that send a byte a second": _drip,
    "clients that do not read": _do_not_read,
    "clients that are gone": _are_gone,
    "requests beyond what may wait": _are_too_many,
}
