"""Many clients at once on a running server: is every answer right and its own, and does the server stay as it was?

    moeinf serve &
    python benchmarks/serve_load.py demo --at-once 200 --requests 2000 --minutes 10 --idle 5000 --pid $!

Some prompts are asked one after the other, greedily; then all of them by many clients at once, streamed and whole by
turns, and each answer must be the one that was given before. Meanwhile other clients misbehave: they read slowly, send
half of a request, hang up in the middle of an upload or of an answer, or connect and say nothing. /health is asked five
times a second. Printed: answers that were lost or wrong, time to the first byte and to the end, the slowest /health,
and the server's memory at the beginning and the end. Exits 1 where an answer was lost or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

WORDS = "time man day house water boy girl dog tree sun king ship bird road song night".split()  # noqa: SIM905


@dataclass
class Tally:
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    misdeeds: int = 0


class Client:
    """Speaks HTTP to one server, one connection a request."""

    def __init__(self, host: str, port: int, model: str, tokens: int) -> None:
        self._host, self._port, self._model, self._tokens = host, port, model, tokens

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=1 << 22)

    def head(self, method: str, path: str, length: int) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()

    def body(self, prompt: str, *, stream: bool, tokens: int | None = None) -> bytes:
        asked = {"model": self._model, "prompt": prompt, "max_tokens": tokens or self._tokens, "temperature": 0}
        return json.dumps(asked | {"stream": stream}).encode()

    async def complete(self, prompt: str, *, stream: bool) -> tuple[str, float]:
        """The answer's text, and the seconds to its first byte. Raises OSError, ValueError for what is none."""
        started, body = time.perf_counter(), self.body(prompt, stream=stream)
        reader, writer = await self.connect()
        try:
            writer.write(self.head("POST", "/v1/completions", len(body)) + body)
            status = int((await reader.readline()).split()[1])
            first_s = time.perf_counter() - started
            _, _, content = (await _rest(reader)).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if status != 200:
            raise ValueError(f"status {status}: {content[:200]!r}")
        return (_streamed(content) if stream else json.loads(content)["choices"][0]["text"]), first_s

    async def health(self) -> None:
        reader, writer = await self.connect()
        try:
            writer.write(self.head("GET", "/health", 0))
            await reader.read()
        finally:
            writer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Head and body up to the connection's end; a chunked body without its chunk sizes."""
    data = await reader.read(-1)
    head, _, body = data.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return data
    pieces, at = [], 0
    while at < len(body):
        line = body.index(b"\r\n", at)
        size = int(body[at:line], 16)
        pieces.append(body[line + 2 : line + 2 + size])
        at = line + 4 + size
    return head + b"\r\n\r\n" + b"".join(pieces)


def _streamed(content: bytes) -> str:
    """The text of a stream. Raises ValueError for one that was cut."""
    lines = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: ")]
    if not lines or lines[-1] != b"[DONE]":
        raise ValueError(f"the stream ended with {lines[-1:]!r}")
    return "".join(choice["text"] for line in lines[:-1] for choice in json.loads(line)["choices"])


class Misbehaviour:
    """Clients that no server can please, one kind after the other."""

    def __init__(self, client: Client, tally: Tally) -> None:
        self._client, self._tally = client, tally

    async def go_on(self) -> None:
        kinds = [self._half_head, self._half_body, self._hang_up, self._read_slowly]
        number = 0
        while True:
            with suppress(OSError):
                await kinds[number % len(kinds)]()
                self._tally.misdeeds += 1
            number += 1

    async def _half_head(self) -> None:
        _, writer = await self._client.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
        await asyncio.sleep(1)
        writer.close()

    async def _half_body(self) -> None:
        _, writer = await self._client.connect()
        writer.write(self._client.head("POST", "/v1/completions", 10_000) + b'{"model": "')
        await asyncio.sleep(1)
        writer.transport.abort()

    async def _hang_up(self) -> None:
        reader, writer = await self._client.connect()
        body = self._client.body("A king and a ship", stream=True, tokens=400)
        writer.write(self._client.head("POST", "/v1/completions", len(body)) + body)
        await reader.readline()
        writer.transport.abort()

    async def _read_slowly(self) -> None:
        reader, writer = await self._client.connect()
        body = self._client.body("A bird on the road", stream=True, tokens=100)
        writer.write(self._client.head("POST", "/v1/completions", len(body)) + body)
        for _ in range(10):
            await reader.read(16)
            await asyncio.sleep(0.2)
        writer.close()


async def _watch_health(client: Client, tally: Tally) -> None:
    while True:
        started = time.perf_counter()
        try:
            await client.health()
            tally.health_s.append(time.perf_counter() - started)
        except OSError as error:
            tally.lost.append(f"/health: {error}")
        await asyncio.sleep(0.2)


async def _load(given: argparse.Namespace) -> tuple[Tally, float]:
    client, tally = Client(given.host, given.port, given.model, given.tokens), Tally()
    draw = random.Random(0)
    prompts = [f"The {' '.join(draw.sample(WORDS, 3))} and" for _ in range(16)]
    expected = {prompt: (await client.complete(prompt, stream=False))[0] for prompt in prompts}
    gate = asyncio.Semaphore(given.at_once)
    idle = []
    for _ in range(given.idle):
        with suppress(OSError):
            idle.append(await client.connect())

    async def one(number: int) -> None:
        await asyncio.sleep(given.minutes * 60 * number / given.requests)
        prompt = prompts[number % len(prompts)]
        async with gate:
            started = time.perf_counter()
            try:
                text, first_s = await client.complete(prompt, stream=number % 2 == 0)
            except (OSError, ValueError, IndexError) as error:
                tally.lost.append(f"request {number}: {error}")
                return
            tally.first_s.append(first_s)
            tally.total_s.append(time.perf_counter() - started)
        tally.answers += 1
        if text != expected[prompt]:
            tally.wrong.append(f"request {number}: {text!r} instead of {expected[prompt]!r}")

    watchers = [asyncio.create_task(_watch_health(client, tally))]
    watchers += [asyncio.create_task(Misbehaviour(client, tally).go_on()) for _ in range(given.misbehaving)]
    started = time.perf_counter()
    burst = [asyncio.create_task(client.complete(prompts[i % 16], stream=True)) for i in range(given.at_once)]
    for i, result in enumerate(await asyncio.gather(*burst, return_exceptions=True)):
        if isinstance(result, BaseException):
            tally.lost.append(f"of all at once: {result}")
        elif result[0] != expected[prompts[i % 16]]:
            tally.wrong.append(f"of all at once: {result[0]!r}")
    await asyncio.gather(*(one(number) for number in range(given.requests)))
    for task in watchers:
        task.cancel()
    for _, writer in idle:
        writer.close()
    return tally, time.perf_counter() - started


def _memory(pid: int | None) -> str:
    """Resident bytes of the server, its open files and threads."""
    if pid is None:
        return "not asked for (--pid)"
    status = Path(f"/proc/{pid}/status").read_text()
    values = dict(line.split(":", 1) for line in status.splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return f"{int(values['VmRSS'].split()[0]) / 1000:.0f} MB, {values['Threads'].strip()} threads, {files} files"


def _times(name: str, seconds: list[float]) -> str:
    if not seconds:
        return f"{name}: none"
    ordered = sorted(seconds)
    return (
        f"{name}: median {statistics.median(ordered):.3f} s, 99 % {ordered[int(len(ordered) * 0.99)]:.3f} s, "
        f"slowest {ordered[-1]:.3f} s (n={len(ordered)})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=11435)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=10.0, help="over which the requests begin")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--misbehaving", type=int, default=8, help="clients that do nothing as they should")
    parser.add_argument("--idle", type=int, default=0, help="connections that say nothing")
    parser.add_argument("--pid", type=int, help="of the server, to read its memory")
    given = parser.parse_args()
    before = _memory(given.pid)
    tally, seconds = asyncio.run(_load(given))
    time.sleep(1)
    print(f"{tally.answers} answers in {seconds:.0f} s, {len(tally.lost)} lost, {len(tally.wrong)} wrong")
    print(f"{tally.misdeeds} misdeeds, {given.idle} idle connections")
    print(_times("first byte", tally.first_s))
    print(_times("whole answer", tally.total_s))
    print(_times("/health", tally.health_s))
    print(f"server before: {before}; after: {_memory(given.pid)}")
    for line in [*tally.lost, *tally.wrong][:20]:
        print(line, file=sys.stderr)
    sys.exit(bool(tally.lost or tally.wrong))


if __name__ == "__main__":
    main()
