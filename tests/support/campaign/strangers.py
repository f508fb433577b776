"""Clients that nobody would want, by the hundred: a server goes on for the others, and afterwards all is as before.

Connections stand idle, heads and bodies drip, clients do not read, end their side, or are gone at any moment of a
request, texts are too long, and more ask than may wait. What it costs the others is measured.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import resource
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
from tests.support.campaign.bombs import BOMBS, with_schema
from tests.support.campaign.keys import welch_t
from tests.support.campaign.served import resident_bytes, served
from tests.support.campaign.step import Done, Turn

_MODEL, _CHAT = "demo", "demo:chat"
_ASKED: Final = {"model": _MODEL, "prompt": "The king said", "options": {"num_predict": 6, "temperature": 0}}
_LONG: Final = {"model": _MODEL, "prompt": "Once upon a time", "options": {"num_predict": 400, "temperature": 0}}
_HEAD_S, _BODY_S, _UNREAD_S = 10.0, 30.0, 60.0  # after which the server cuts off: connections.py, guard.py
_BEHIND_OTHERS_S: Final = 900.0  # behind fifty long answers that nobody reads
_STARVED_S: Final = 30.0  # beyond these, on a machine that others use
_IDLE, _DRIPS, _READERS, _GONE, _MORE, _ENDED, _TEXTS = 15_000, 500, 50, 250, 200, 20, 8
_GUESSES: Final = 100_000
_TEXT_BYTES: Final = 4 << 20
_LOAD_S: Final = 20.0  # of four times the requests that there is room for, and before of as many as are answered
_QUEUE: Final = 64  # requests that may wait
_CONNECTION_BYTES: Final = 64 << 10  # that one may take, with a request of its own
_POOLED: Final = 16  # threads of pools, which grow to that


@dataclass
class Stranger:
    """A server, and what was seen of it."""

    url: tuple[str, int]
    process: int
    rng: random.Random
    parallel: int  # answers that it makes side by side
    wanted: Any = None
    threads: int = 0  # at first
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: object = None, patience_s: float = 180.0) -> tuple[int, str, float]:
        """The status, the text, and how many seconds to wait the server advises."""
        connection = http.client.HTTPConnection(*self.url, timeout=patience_s)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(), float(response.headers.get("Retry-After", 0))
        finally:
            connection.close()

    def check_served(self, when: str) -> None:
        """Somebody who means it gets the answer that is right."""
        status, text, _ = self.ask("POST", "/api/generate", _ASKED | {"stream": False}, _BEHIND_OTHERS_S)
        answer = json.loads(text).get("response") if status == 200 else text
        self.wanted = self.wanted or answer
        if status != 200 or answer != self.wanted:
            self.faults.append(f"{when}: {status} {answer!r}, not {self.wanted!r}")
        status, text, _ = self.ask("GET", "/health")
        if status != 200:
            self.faults.append(f"{when}: /health: {status} {text}")

    def note(self, what: str, value: float) -> None:
        """Something that was measured, of which the most is kept."""
        self.measured[what] = max(self.measured.get(what, value), value)

    @contextmanager
    def watched(self, when: str) -> Iterator[None]:
        """Meanwhile /health is asked, of whose answers 99 in 100 came within what is noted."""
        over, took = threading.Event(), list[float]()

        def watch() -> None:
            while not over.wait(0.02):
                begun = time.monotonic()
                status, text, _ = self.ask("GET", "/health")
                took.append(time.monotonic() - begun)
                if status != 200:
                    self.faults.append(f"/health {when}: {status} {text}")

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if took:
            self.note(f"/health {when}, 99th percentile, ms", 1e3 * sorted(took)[len(took) * 99 // 100])

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
    for name in (_MODEL, _CHAT):
        ensure(name, home=turn.folder / "home")
    parallel, begun = turn.rng.choice((1, 2, 4)), time.monotonic()
    options = ("--max-queue", str(_QUEUE), "--parallel", str(parallel))
    with served(turn.folder, turn.folder / "home", options) as (process, url):
        stranger = Stranger(url, process.pid, turn.rng, parallel)
        stranger.check_served("at first")
        stranger.ask("POST", "/api/generate", _ASKED | {"model": _CHAT, "stream": False})  # both models are loaded
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
    counts = Counter({f"stranger: {what}": count for what, count in stranger.counts.items()})
    return Done(counts, stranger.faults, stranger.measured)


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
    count = min(_IDLE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    before, begun = resident_bytes(stranger.process), time.monotonic()
    with _many(stranger, count) as connections, stranger.watched("beside idle connections"):
        stranger.check_served("beside idle connections")
        grown = resident_bytes(stranger.process) - before
        ended = _ended(connections, begun + _HEAD_S + _STARVED_S)
    stranger.note("memory of an idle connection, KiB", grown / count / 1024)
    if ended < count:
        stranger.faults.append(f"{count - ended} of {count} idle connections are still open")
    if grown > count * _CONNECTION_BYTES:
        stranger.faults.append(f"{count} idle connections take {grown >> 10} KiB")
    return count


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


def _end_their_side(stranger: Stranger) -> int:
    """Behind a whole request; they read on."""
    body = json.dumps(_ASKED | {"stream": False}).encode()
    head = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with _many(stranger, _ENDED, head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body) as connections:
        for connection in connections:
            connection.shutdown(socket.SHUT_WR)
        for connection in connections:
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b"")).rpartition(b"\r\n\r\n")[2]  # noqa: B023
            if not answer or json.loads(answer)["response"] != stranger.wanted:
                stranger.faults.append(f"a client that had ended its side got {answer!r}")
    return _ENDED


def _send_long_texts(stranger: Stranger) -> int:
    """Texts far beyond the context, which are told to be: how many tokens they have, and how many may be."""
    words = ("Once upon a time. ", "\u4f60\u597d", "{[(<", "a")
    with stranger.watched("beside long texts"):
        for number in range(_TEXTS):
            text = words[number % len(words)] * (_TEXT_BYTES // len(words[number % len(words)].encode()))
            status, told, _ = stranger.ask("POST", "/api/generate", {"model": _MODEL, "prompt": text, "stream": False})
            if status != 400 or len(re.findall(r"\d+", told)) < 2:
                stranger.faults.append(f"a text of 4 MiB: {status} {told[:200]}")
    return _TEXTS


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


def _ask_without_end(stranger: Stranger) -> int:
    """Each client asks again at once, or when it was told to. Nearly as many answers are made as without the others."""

    asked = _ASKED | {"stream": False, "options": {"num_predict": 64, "temperature": 0}}
    wanted = stranger.ask("POST", "/api/generate", asked)[1]

    def rate(clients: int) -> float:
        seen, end = Counter[str](), time.monotonic() + _LOAD_S

        def ask() -> None:
            while time.monotonic() < end:
                status, text, again_s = stranger.ask("POST", "/api/generate", asked)
                right = status == 200 and json.loads(text)["response"] == json.loads(wanted)["response"]
                seen["right" if right else "later" if status == 503 and again_s > 0 else f"{status} {text}"] += 1
                if not right:
                    time.sleep(min(again_s, max(0.0, end - time.monotonic())))

        threads = [threading.Thread(target=ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if others := seen.keys() - {"right", "later"}:
            stranger.faults.append(f"of {clients} clients without end: {sorted(others)[:3]}")
        stranger.counts["answers under four times the load"] += seen["right"] * (clients > stranger.parallel)
        return seen["right"] / _LOAD_S

    alone = rate(stranger.parallel)
    with stranger.watched("under four times the load"):
        loaded = rate(4 * (stranger.parallel + _QUEUE))
    stranger.note("fewer answers under four times the load, %", 100 * (1 - loaded / max(alone, 1e-9)))
    return 4 * (stranger.parallel + _QUEUE)


def _send_bombs(stranger: Stranger) -> int:
    for bomb in BOMBS:
        begun = time.monotonic()
        status, text, _ = stranger.ask("POST", "/v1/chat/completions", with_schema(_CHAT, bomb))
        stranger.note("the longest answer to a hostile schema, s", time.monotonic() - begun)
        if status not in (200, 400):
            stranger.faults.append(f"{bomb[:200]}: {status} {text[:300]}")
    return len(BOMBS)


def _guess_keys(stranger: Stranger) -> int:
    stranger.note("Welch's t of keys that are nearly right", welch_t(_GUESSES, stranger.rng))
    return _GUESSES


_KINDS: Final[dict[str, Callable[[Stranger], int]]] = {
    "connections that stand idle": _stand_idle,
    "clients that send a byte a second": _drip,
    "clients that do not read": _do_not_read,
    "clients that are gone": _are_gone,
    "requests beyond what may wait": _are_too_many,
    "clients that have ended their side": _end_their_side,
    "texts of 4 MiB": _send_long_texts,
    "clients that ask without end": _ask_without_end,
    "hostile schemas": _send_bombs,
    "wrong keys": _guess_keys,
}
