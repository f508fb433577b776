"""A server under mixed load and faults: no answer is lost, none is another's, and /health says what is so.

Each request is asked once alone, on a quiet server; then many clients ask all of them by turns, whole and streamed,
while others misbehave, models are switched, copied and removed, processes of the server are stopped and killed, its
disk is full, and somebody takes its memory. How long a stream stood still, and how memory grew, is measured.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any, Final

from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import ensure
from tests.support.campaign.asked import Asked, RefusedInStreamError, requests
from tests.support.campaign.bombs import BOMBS, with_schema
from tests.support.campaign.served import resident_bytes, served
from tests.support.campaign.shortage import Group, fill, group, small_disk
from tests.support.campaign.step import Done, Turn

MODELS: Final = ("demo", "demo:chat", "demo:q8_0")  # q8_0 is rounded in long passes unlike in short ones
_CLIENTS: Final = 6
_REQUESTS: Final = 48
_PATIENCE_S: Final = 180.0  # for one answer on a starved machine
_HEALTH_S: Final = 10.0
_GROWTH_BYTES: Final = 48 << 20  # of the server, from a third of the time to its end
_LIMIT_BYTES: Final = 2 << 30  # of the server's memory, where it can have a limit


@dataclass
class Soak:
    """What is known of a running server, and what was seen of it."""

    url: tuple[str, int]
    process: int
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # how often each was seen
    over: threading.Event = field(default_factory=threading.Event)
    struck: float = -1e9  # when a process of the server was last hurt: what it had in hand may end in an error
    healed: float = -1e9  # when that one went on, or had been replaced; before `struck` meanwhile
    disk: Path | None = None  # of its own, which may be filled
    group: Group | None = None  # whose memory may be taken
    short: bool = False  # whether it is
    pauses: dict[str, float] = field(default_factory=dict)  # the longest of a stream, in seconds

    def fault(self, text: str) -> None:
        self.faults[text[:700]] += 1

    def ask(self, method: str, path: str, body: object = None, patience_s: float = _PATIENCE_S) -> tuple[int, str]:
        connection = http.client.HTTPConnection(*self.url, timeout=patience_s)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


def server(turn: Turn) -> Done:
    """A server for so many seconds, with a seed of the step's own."""
    few = turn.number % 2 == 1  # one model at a time: each change of models closes and opens
    with ExitStack() as place:
        limited, disk = place.enter_context(group(_LIMIT_BYTES)), place.enter_context(small_disk(turn.folder))
        home = (disk or turn.folder) / "home"
        for name in MODELS[:2]:
            ensure(name, home=home)
        ensure("demo", PullOptions(quant="q8_0"), home=home)
        options = ("--prefix-disk", "50MB", *(("--models", "1") if few else ()))
        with served(turn.folder, home, options, limited) as (process, url):
            soak = Soak(url, process.pid, turn.rng, disk=disk, group=limited)
            wanted = _alone(soak)
            measured = _play(soak, wanted, turn.seconds)
            if process.poll() is not None:
                soak.fault(f"the server ended with {process.returncode}")
            log = (turn.folder / "log").read_text(errors="replace")
    if "Traceback" in log:
        soak.faults[f"a traceback in the log: {log[log.index('Traceback') :][:4000]}"] += 1
    if process.returncode not in (0, None):
        soak.fault(f"SIGTERM ended the server with {process.returncode}: {log[-300:]}")
    counts = Counter({f"server: {what}": count for what, count in soak.counts.items()})
    return Done(counts, [f"{count} times: {text}" for text, count in soak.faults.items()], measured)


def _alone(soak: Soak) -> list[tuple[Asked, Any]]:
    """Each request with the answer that it gets on a quiet server; streamed it is the same."""
    wanted = []
    for asked in requests(soak.rng, MODELS, _REQUESTS):
        status, answer = asked.of(soak.url, stream=False, patience_s=_PATIENCE_S)
        assert status == 200, f"{asked.path} {asked.body}: {status} {answer}"
        wanted.append((asked, answer))
    return wanted


def _play(soak: Soak, wanted: list[tuple[Asked, Any]], seconds: float) -> dict[str, float]:
    tasks = [partial(_client, soak, wanted)] * _CLIENTS + [partial(_watch, soak), partial(_listen, soak)]
    sizes, begun = list[tuple[float, int]](), time.monotonic()
    tasks += [partial(_misbehave, soak, wanted, act) for act in _MISDEEDS]
    tasks.append(partial(_weigh, soak, sizes, begun, seconds))
    threads = [threading.Thread(target=_told, args=(soak, task)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    warm = sizes[len(sizes) // 3 :]
    first, last = (max(size for _, size in part) for part in (sizes[: len(sizes) // 3], sizes[-len(sizes) // 5 :]))
    if last - first > _GROWTH_BYTES:
        soak.fault(f"memory grew from {first >> 20} MiB to {last >> 20} MiB")
    growth, _ = linear_regression([at for at, _ in warm], [size for _, size in warm])  # bytes a second
    of_memory = {"MiB an hour": growth * 3600 / 2**20, "MiB": last / 2**20}
    return {**{f"memory but for kept prompts, {unit}": value for unit, value in of_memory.items()}, **soak.pauses}


def _weigh(soak: Soak, sizes: list[tuple[float, int]], begun: float, seconds: float) -> None:
    """How much memory the server has, but for what it keeps of prompts, which grows up to a bound; ends the play."""
    while time.monotonic() - begun < seconds and not soak.over.wait(min(1.0, seconds / 30)):
        resident = resident_bytes(soak.process)
        _, text = soak.ask("GET", "/metrics")
        kept = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("moeinf_kept_prompt_bytes{")]
        sizes.append((time.monotonic() - begun, resident - int(sum(kept))))
    soak.over.set()


def _told(soak: Soak, task: Callable[[], None]) -> None:
    try:
        task()
    except Exception as error:
        soak.fault(f"{error!r}")
        soak.over.set()


def _client(soak: Soak, wanted: list[tuple[Asked, Any]]) -> None:
    rng = random.Random(soak.rng.random())
    while not soak.over.is_set():
        asked, answer = rng.choice(wanted)
        stream, begun = asked.streams and rng.random() < 0.5, time.monotonic()
        try:
            status, found = asked.of(soak.url, stream=stream, patience_s=_PATIENCE_S)
        except RefusedInStreamError as error:
            status, found = 500, str(error)
        except (OSError, http.client.HTTPException, ValueError, AssertionError) as error:
            status, found = 0, f"{error!r}"
        if status == 200 and found == answer:
            soak.counts["answers, each the one that it gets alone"] += 1
        elif status >= 500 and soak.struck > begun - 120:
            soak.counts["errors while a process of the server was stopped or killed"] += 1
        else:
            soak.fault(f"{asked.path}: {status} {_parting(found, answer)}; asked {asked.encoded(stream=False)!r}")


def _parting(found: Any, wanted: Any) -> str:
    """What two answers say where they part."""
    one, other = repr(found), repr(wanted)
    alike = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    at = max(0, alike - 60)
    return f"{one[at : at + 150]!r}, not {other[at : at + 150]!r}"


def _watch(soak: Soak) -> None:
    """/health is asked twice a second: it says that the server works, soon, as long as it does."""
    while not soak.over.wait(0.5):
        begun = time.monotonic()
        status, text = soak.ask("GET", "/health", patience_s=60)
        took = time.monotonic() - begun
        soak.counts["health asked"] += 1
        if status != 200 or took > _HEALTH_S:
            soak.fault(f"/health: {status} {text} after {took:.1f} s")


def _listen(soak: Soak) -> None:
    """One stream after the other, as somebody reads it at a screen: how long it stands still at most, by what is done
    to the server meanwhile. No text comes from a process that is stopped: such pauses are as long as that."""
    body = {"model": MODELS[0], "prompt": "Once upon a time", "options": {"num_predict": 200, "temperature": 0}}
    while not soak.over.is_set():
        connection = http.client.HTTPConnection(*soak.url, timeout=_PATIENCE_S)
        try:
            connection.request("POST", "/api/generate", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.readline()
            before, short = time.monotonic(), soak.short
            while response.readline():
                now, hurt = time.monotonic(), soak.healed < soak.struck or soak.healed > before
                mishap = " while a process was stopped or killed" if hurt else ""
                if not hurt and (short or soak.short):
                    mishap = " while memory was short"
                name = f"longest pause of a stream{mishap}, s"
                soak.pauses[name] = max(soak.pauses.get(name, 0.0), now - before)
                before, short = now, soak.short
        finally:
            connection.close()


def _misbehave(soak: Soak, wanted: list[tuple[Asked, Any]], act: str) -> None:
    rng = random.Random(soak.rng.random())
    while not soak.over.wait(rng.uniform(0.2, 3.0)):
        with suppress(OSError, http.client.HTTPException):
            soak.counts[act] += _MISDEEDS[act](soak, rng.choice(wanted)[0], rng)


def _head(asked: Asked, data: bytes) -> bytes:
    head = f"POST {asked.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _hang_up(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    """Somewhere in a request or in its answer."""
    whole = _head(asked, asked.encoded(stream=True))
    with socket.create_connection(soak.url, timeout=_PATIENCE_S) as connection:
        if rng.random() < 0.4:
            connection.sendall(whole[: rng.randrange(len(whole))])
        else:
            connection.sendall(whole)
            connection.recv(rng.choice((1, 100, 2000)))
    return True


def _read_slowly(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(5)
        connection.connect(soak.url)
        connection.sendall(_head(asked, asked.encoded(stream=True)))
        for _ in range(20):
            connection.recv(64)
            if soak.over.wait(0.1):
                break
    return True


def _send_a_bomb(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    status, text = soak.ask("POST", "/v1/chat/completions", with_schema(rng.choice(MODELS), rng.choice(BOMBS)))
    if status not in (200, 400) and time.monotonic() - soak.struck > 120:
        soak.fault(f"a schema that takes long: {status} {text}")
    return True


def _copy_and_remove(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    """A name is taken away while it answers: the answer is whole, or says that there is no such model."""
    name, source = f"copy{rng.randrange(3)}", rng.choice(MODELS)
    soak.ask("POST", "/api/copy", {"source": source, "destination": name})
    body = {"model": name, "prompt": "Once", "options": {"num_predict": 30, "temperature": 0}}
    thread = threading.Thread(target=lambda: soak.ask("DELETE", "/api/delete", {"model": name}))
    thread.start()
    status, text = soak.ask("POST", "/api/generate", body | {"stream": False})
    thread.join()
    if status not in (200, 404, 400) and time.monotonic() - soak.struck > 120:
        soak.fault(f"a model that was removed meanwhile: {status} {text}")
    return True


def _stop_a_process(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    """The process that splits texts into tokens stands still for a while, or is killed."""
    children = [child for at in Path(f"/proc/{soak.process}/task").iterdir() for child in _of_task(at)]
    if not children or rng.random() < 0.7:
        return False
    child, soak.struck = rng.choice(children), time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(child, rng.choice((signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL)))
    soak.over.wait(rng.uniform(0.1, 4))
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGCONT)
    soak.healed = time.monotonic()
    return True


def _fill_disk(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    """What writes is told so, and nothing else; the answers of others stay right."""

    def meanwhile() -> None:
        status, text = soak.ask("POST", "/api/copy", {"source": MODELS[0], "destination": "full"})
        if status != 200 and "space" not in text:
            soak.fault(f"a copy on a full disk: {status} {text}")
        soak.over.wait(rng.uniform(0.2, 3))
        soak.ask("DELETE", "/api/delete", {"model": "full"})

    if soak.disk is None:
        return False
    fill(soak.disk, meanwhile)
    return True


def _take_memory(soak: Soak, asked: Asked, rng: random.Random) -> bool:
    if soak.group is None:
        return False
    with soak.group.taken(rng.randint(8, 200) << 20):
        soak.short = True
        soak.over.wait(rng.uniform(1, 6))
        soak.short = False
    return True


def _of_task(task: Path) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in (task / "children").read_text().split()]
    return []


_MISDEEDS: Final[dict[str, Callable[[Soak, Asked, random.Random], bool]]] = {
    "clients that hung up": _hang_up,
    "clients that read slowly": _read_slowly,
    "schemas that take long": _send_a_bomb,
    "models copied and removed": _copy_and_remove,
    "processes stopped or killed": _stop_a_process,
    "times that the disk was full": _fill_disk,
    "times that memory was taken": _take_memory,
}
