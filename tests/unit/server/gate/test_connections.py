"""A connection that does not say what it wants, or reads nothing, is closed; one whose answer takes long is not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from moeinf.server.gate.connections import DeadlineProtocol

HEAD_S = 0.2
READ_S = 0.4
ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 8 << 20  # bytes, more than the kernel keeps for a client


class Quick(DeadlineProtocol):
    head_s = HEAD_S
    read_s = READ_S
    ask_s = 0.05


async def slow_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(3 * HEAD_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def large_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


@contextlib.asynccontextmanager
async def served(app: ASGIApp = slow_answer) -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Quick, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def told(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]], app: ASGIApp = slow_answer
) -> bytes:
    """What a client reads that talks so, up to the end of its connection or of its wish to read."""

    async def run() -> bytes:
        async with served(app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await asyncio.wait_for(talk(reader, writer), 30)
            finally:
                writer.close()

    return asyncio.run(run())


def test_silence_is_cut_off() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        return await reader.read()

    assert told(say_nothing) == b""


def test_a_head_that_drips_is_cut_off() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        with contextlib.suppress(ConnectionError):
            for byte in ASKED[:-2]:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(HEAD_S / 10)
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""

    assert told(drip) == b""


def test_an_answer_may_take_its_time_and_another_request_may_follow() -> None:
    async def ask_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        answers = b""
        for _ in range(2):
            writer.write(ASKED)
            answers += await reader.readuntil(b"ok")
        return answers

    assert told(ask_twice).count(b"200 OK") == 2


def test_a_second_head_that_drips_is_cut_off() -> None:
    async def ask_and_drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(ASKED)
        await reader.readuntil(b"ok")
        writer.write(ASKED[:10])
        return await reader.read()

    assert told(ask_and_drip) == b""


def read_of_a_large_answer(read: Callable[[socket.socket], int], requests: bytes = ASKED) -> int:
    """How many bytes a client gets that reads so, through a window of some kilobytes."""

    async def run() -> int:
        async with served(large_answer) as port:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(30)
                client.connect(("127.0.0.1", port))
                client.sendall(requests)
                return await asyncio.to_thread(read, client)

    return asyncio.run(asyncio.wait_for(run(), 60))


def the_rest(client: socket.socket) -> int:
    count = 0
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(1 << 20):
            count += len(piece)
    return count


@pytest.mark.parametrize("requests", [ASKED, 400 * ASKED, ASKED + b"no request\r\n\r\n"])
def test_a_client_that_reads_nothing_is_cut_off(requests: bytes) -> None:
    def wait_and_read(client: socket.socket) -> int:
        time.sleep(3 * READ_S)
        return the_rest(client)

    assert read_of_a_large_answer(wait_and_read, requests) < LARGE


def test_a_client_that_reads_slowly_gets_all() -> None:
    def read_now_and_then(client: socket.socket) -> int:
        until, count = time.monotonic() + 3 * READ_S, 0
        while time.monotonic() < until:
            count += len(client.recv(256 << 10))
            time.sleep(READ_S / 20)
        assert count < LARGE
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        return count + the_rest(client)

    assert read_of_a_large_answer(read_now_and_then) > LARGE


def half_closed(requests: bytes, app: ASGIApp = slow_answer) -> bytes:
    """What a client reads that ends its side behind these requests."""

    async def end_and_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(requests)
        writer.write_eof()
        return await reader.read()

    return told(end_and_read, app)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_a_client_that_has_ended_its_side_gets_its_answer(more: bytes) -> None:
    answer = half_closed(ASKED[:-2] + more + b"\r\n")
    asked, _, rest = answer.rpartition(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert rest.startswith(b"HTTP/1.1 200 OK") and rest.endswith(b"ok") and len(asked) < 200
    assert half_closed(ASKED, large_answer).endswith(bytes(LARGE))


def test_so_does_one_that_had_asked_for_more() -> None:
    assert half_closed(3 * ASKED).count(b"200 OK") == 3
    assert half_closed(2 * ASKED + ASKED[:20]).count(b"200 OK") == 2


@pytest.mark.parametrize("asked", [ASKED[:-2], ASKED.replace(b"GET", b"POST")[:-2] + b"Content-Length: 5\r\n\r\nab"])
def test_one_that_has_not_asked_for_anything_whole_gets_none(asked: bytes) -> None:
    assert half_closed(asked) == b""


@pytest.mark.parametrize("asked", [ASKED, ASKED.replace(b"1.1", b"1.0")])
def test_one_that_is_gone_is_known_to_be_while_nothing_is_said(asked: bytes) -> None:
    """By an end, which looks like that of a client that still reads."""
    gone = asyncio.Event()

    async def wait_for_the_end(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async def run() -> None:
        async with served(wait_for_the_end) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(asked)
            writer.close()
            await asyncio.wait_for(gone.wait(), 30)

    asyncio.run(run())
