"""A connection that does not say what it wants is closed; one whose answer takes long is not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import uvicorn
from starlette.types import Receive, Scope, Send

from moeinf.server.gate.connections import DeadlineProtocol

HEAD_S = 0.2
ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Quick(DeadlineProtocol):
    head_s = HEAD_S


async def slow_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(3 * HEAD_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(slow_answer, http=Quick, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def told(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]) -> bytes:
    """What a client reads that talks so, up to the end of its connection or of its wish to read."""

    async def run() -> bytes:
        async with served() as port:
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
