"""What a proxy could read in another way is refused, and nothing behind it is run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from moeinf.server.gate.connections import DeadlineProtocol

HOST = b"Host: localhost\r\n"
BEHIND = b"GET /behind HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(*lines: bytes, body: bytes = b"") -> bytes:
    return b"POST /first HTTP/1.1\r\n" + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
ONE_CHUNK = b"2\r\nab\r\n0\r\n"
REFUSED: dict[str, bytes] = {
    "a length and chunks": post(b"Content-Length: 4", CHUNKED, body=b"0\r\n\r\n"),
    "chunks and a length": post(CHUNKED, b"Content-Length: 5", body=b"0\r\n\r\n"),
    "chunks of HTTP/1.0": b"POST /first HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n\r\n0\r\n\r\n",
    "two codings": post(CHUNKED, b"Transfer-Encoding: identity", body=b"0\r\n\r\n"),
    "another coding": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "the same length twice": post(b"Content-Length: 2", b"Content-Length: 2", body=b"ab"),
    "two lengths": post(b"Content-Length: 2", b"Content-Length: 3", body=b"ab"),
    "a list of lengths": post(b"Content-Length: 2, 2", body=b"ab"),
    "a length with a sign": post(b"Content-Length: +2", body=b"ab"),
    "a length below 0": post(b"Content-Length: -1", body=b"ab"),
    "an empty length": post(b"Content-Length: ", body=b"ab"),
    "a length of 30 digits": post(b"Content-Length: " + b"1" * 30, body=b"ab"),
    "a bare LF behind the first line": b"GET / HTTP/1.1\n" + HOST + b"\r\n",
    "a bare LF behind a header": b"GET / HTTP/1.1\r\nHost: localhost\n\r\n",
    "a bare LF at the end": b"GET / HTTP/1.1\r\n" + HOST + b"\n",
    "a bare CR": b"GET / HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "a folded header": post(b"X: a", b" b"),
    "a header folded by a tab": post(b"X: a", b"\tb"),
    "a fold before the first header": b"GET / HTTP/1.1\r\n " + HOST + b"\r\n",
    "space before a colon": post(b"Content-Length : 2", body=b"ab"),
    "a header without a name": post(b": x"),
    "a NUL in a header": post(b"X: a\0b"),
    "an ESC in a header": post(b"X: a\x1bb"),
    "a NUL in the path": b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"GET /\r\n" + HOST + b"\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/1.9": b"GET / HTTP/1.9\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET / HTTP/0.9\r\n" + HOST + b"\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "another server": b"GET http://localhost/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "no path": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a chunk without a size": post(CHUNKED, body=b"x\r\nab\r\n0\r\n\r\n"),
    "a chunk with a sign": post(CHUNKED, body=b"+2\r\nab\r\n0\r\n\r\n"),
    "a chunk of 0x": post(CHUNKED, body=b"0x2\r\nab\r\n0\r\n\r\n"),
    "a chunk that goes on": post(CHUNKED, body=b"2\r\nabc\r\n0\r\n\r\n"),
    "a chunk behind a bare LF": post(CHUNKED, body=b"2\nab\r\n0\r\n\r\n"),
    "a bare CR in an extension": post(CHUNKED, body=b"2\r\nab\r\n0;\rx\r\n\r\n"),
    "a bare LF behind the last chunk": post(CHUNKED, body=ONE_CHUNK + b"\n"),
    "a bare LF in a trailer": post(CHUNKED, body=ONE_CHUNK + b"X: y\n\r\n"),
    "a folded trailer": post(CHUNKED, body=ONE_CHUNK + b"X: y\r\n z\r\n\r\n"),
}
TOO_MUCH: dict[str, tuple[int, bytes]] = {
    "a path of 100 kB": (414, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a path without an end": (414, b"GET /" + b"a" * 9000),
    "101 headers": (431, b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 100 + b"\r\n"),
    "a header of 40 kB": (431, b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 40_000 + b"\r\n\r\n"),
    "101 trailers": (431, post(CHUNKED, body=ONE_CHUNK + b"X: y\r\n" * 101 + b"\r\n")),
}
TAKEN: dict[str, bytes] = {
    "a body with a length": post(b"Content-Length: 2", body=b"ab"),
    "zeros before a length": post(b"Content-Length: 002", body=b"ab"),
    "a body in chunks": post(b"transfer-encoding: Chunked", body=b"1\r\na\r\n1;x=y\r\nb\r\n0\r\n\r\n"),
    "trailers": post(CHUNKED, body=ONE_CHUNK + b"X: y\r\nZ: \r\n\r\n"),
    "100 headers": b"GET /first HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 99 + b"\r\n",
    "a path of 8,000 bytes": b"GET /first?" + b"a" * 7900 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "a body that looks like the end of a head": post(b"Content-Length: 8", body=b"\n\n\0\n a\r\n"),
    "tabs and letters beyond ASCII in a header": post(b"X: a\tb \xe4\xff"),
}


class Application:
    """Answers when it has read the body, with the path."""

    def __init__(self) -> None:
        self.whole: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                return
            more = message.get("more_body", False)
        self.whole.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def asked(pieces: Sequence[bytes]) -> tuple[list[int], list[str]]:
    """The statuses that a client reads which sends these pieces, and the paths that the application has answered."""
    application = Application()

    async def run() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(application, http=DeadlineProtocol, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            return b""
        finally:
            writer.close()
            server.should_exit = True
            await serving

    heads = [line for line in asyncio.run(run()).split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [int(line.split()[1]) for line in heads], application.whole


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused_and_ends_the_connection(name: str) -> None:
    assert asked([REFUSED[name] + BEHIND]) == ([400], [])


@pytest.mark.parametrize("name", TOO_MUCH)
def test_so_is_what_is_too_much(name: str) -> None:
    status, sent = TOO_MUCH[name]
    assert asked([sent + BEHIND]) == ([status], [])


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_clear_is_answered_and_so_is_what_follows(name: str) -> None:
    assert asked([TAKEN[name] + BEHIND]) == ([200, 200, 200], ["/first", "/behind", "/last"])


def test_a_request_may_come_byte_by_byte() -> None:
    sent = TAKEN["trailers"] + BEHIND
    assert asked([sent[at : at + 1] for at in range(len(sent))]) == ([200, 200, 200], ["/first", "/behind", "/last"])


def test_a_refused_request_ends_those_behind_it_and_not_those_before() -> None:
    assert asked([BEHIND + REFUSED["a length and chunks"] + BEHIND]) == ([200, 400], ["/behind"])
