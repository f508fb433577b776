"""A server for the page alone: it says what a test told it to, and notes what it was asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from moeinf.server.page.live import LiveEvent, MemoryPart
from moeinf.server.page.page_routes import page_routes
from moeinf.server.turns.overview import Seen

Line = Mapping[str, Any]  # of a streamed answer
MODELS = ("thinker:latest", "plain:latest")
PIECE_S, LIVE_S = 0.002, 0.05  # from one line or event to the next
LAYERS, EXPERTS = 3, 8
DONE: Line = {
    "done": True,
    "done_reason": "stop",
    "message": {"role": "assistant", "content": ""},
    "prompt_eval_count": 9,
    "eval_count": 1234,
    "eval_duration": 60_000_000_000,
    "moeinf": {"hit_rate": 0.8, "read_bytes": 2_500_000_000, "stall_s": 1.25},
}


def said(text: str, size: int = 7) -> list[Line]:
    """The lines that stream `text` in pieces of so many characters."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [{"message": {"role": "assistant", "content": piece}, "done": False} for piece in pieces]


def thought(text: str) -> list[Line]:
    return [{"message": {"role": "assistant", "content": "", "thinking": text}, "done": False}]


def called(name: str, **arguments: Any) -> list[Line]:
    """The line of a stream that calls a tool."""
    call = {"id": "call_1", "function": {"index": 0, "name": name, "arguments": arguments}}
    return [{"message": {"role": "assistant", "content": "", "tool_calls": [call]}, "done": False}]


def a_live_event() -> LiveEvent:
    """Layer 0 is resident, expert 9 is being read, and the first three were used."""
    keys = np.arange(LAYERS * EXPERTS)
    resident, used, reading = (
        np.packbits(flags, bitorder="little").tobytes() for flags in (keys < EXPERTS, keys < 3, keys == 9)
    )
    return LiveEvent(
        "plain:latest", (Seen("plain:latest", "decode", tokens=12),), LAYERS, EXPERTS,
        resident, used, reading,
        hit_rate=0.75, read_bytes_per_s=1.5e9, stall_share=0.25, tokens_per_s=21.4,
        memory=(MemoryPart("expert cache", 3_000_000_000), MemoryPart("dense weights", 1_000_000_000)),
    )  # fmt: skip


@dataclass
class PageServer:
    """answers: the lines of the answers to come, in order; the last one is given again and again.

    An answer that ends without `done` goes on, without a word, until the client leaves.
    """

    answers: list[Sequence[Line]] = field(default_factory=lambda: [[*said("Hello."), DONE]])
    models: Sequence[str] = MODELS
    key: str = ""
    live: LiveEvent = field(default_factory=a_live_event)
    asked: list[dict[str, Any]] = field(default_factory=list)  # bodies of /api/chat
    names: list[str] = field(default_factory=list)  # that the page gave to these requests
    unheard: list[Sequence[Line]] = field(default_factory=list)  # answers that no client heard to their end
    watching: int = 0  # pages that look on
    url: str = ""

    @property
    def left(self) -> int:
        return len(self.unheard)

    def forget(self) -> None:
        """Begins as a new one, at the same address."""
        fresh = PageServer()
        for name in ("answers", "models", "key", "live", "asked", "names", "unheard"):
            setattr(self, name, getattr(fresh, name))

    def app(self) -> Starlette:
        routes = [
            Route("/api/tags", self._tags),
            Route("/api/ps", self._ps),
            Route("/api/show", self._show, methods=["POST"]),
            Route("/api/chat", self._chat, methods=["POST"]),
            Route("/api/live", self._live),
        ]
        return Starlette(routes=[*page_routes(), *routes])

    def _refused(self, request: Request) -> Response | None:
        if not self.key or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": "a key is needed"}, 401)

    async def _tags(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse({"models": [{"name": name} for name in self.models]})

    async def _ps(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse({"models": []})

    async def _show(self, request: Request) -> Response:
        name = (await request.json())["model"]
        can = {"thinking": "thinker" in name, "vision": "seer" in name}
        capabilities = ["completion", *(what for what, does in can.items() if does)]
        parameters = "temperature                    0.6\ntop_k                          20"
        described = {
            "capabilities": capabilities,
            "parameters": parameters,
            "template": "" if "base" in name else "{{}}",
        }
        return JSONResponse({**described, "moeinf": {"always_thinks": name.startswith("always")}})

    async def _chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.names.append(request.headers["x-request-id"])
        lines = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return StreamingResponse(self._lines(lines), media_type="application/x-ndjson")

    async def _lines(self, lines: Sequence[Line]) -> AsyncIterator[str]:
        whole, unheard = False, self.unheard
        try:
            for line in lines:
                yield json.dumps(line) + "\n"
                whole = bool(line.get("done") or line.get("error"))
                await asyncio.sleep(PIECE_S)
            while not whole:
                yield json.dumps({"message": {"role": "assistant", "content": ""}, "done": False}) + "\n"
                await asyncio.sleep(PIECE_S)
        finally:
            if not whole:
                unheard.append(lines)

    async def _live(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            self.watching += 1
            try:
                while True:
                    yield b"data: " + msgspec.json.encode(self.live) + b"\n\n"
                    await asyncio.sleep(LIVE_S)
            finally:
                self.watching -= 1

        return self._refused(request) or StreamingResponse(events(), media_type="text/event-stream")


@contextmanager
def page_server() -> Iterator[PageServer]:
    """A PageServer on a free port, until the end of `with`."""
    page = PageServer()
    with serving(page.app()) as page.url:
        yield page


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The address of an application on a free port, until the end of `with`."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
