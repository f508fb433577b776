"""A small server of the Model Context Protocol over streamable HTTP, for tests of the page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.page_server import serving

NUMBER = {"type": "number"}
ADD = {
    "name": "add",
    "description": "Adds two numbers",
    "inputSchema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
}
FAIL = {"name": "fail", "description": "Fails <b>always</b>", "inputSchema": {"type": "object"}}
DRAW = {"name": "draw", "description": "Draws", "inputSchema": {"type": "object"}}
PINGED = 1000  # the id of what the server asks its client


@dataclass
class McpServer:
    """Two tools, on a page each of the list; calls are answered as a stream, with a question to the client first.

    drawn: the picture, in base64, that a third tool gives.
    """

    drawn: str = ""
    session: str = "session-1"
    origins: tuple[str, ...] = ("*",)
    exposed: tuple[str, ...] = ("Mcp-Session-Id",)
    status: int = 200  # of all answers
    key: tuple[str, str] | None = None  # a header and its value, without which the answer is status 401
    asked: list[dict[str, Any]] = field(default_factory=list)  # the messages that came
    headers: list[dict[str, str]] = field(default_factory=list)  # of each of them
    url: str = ""

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.asked if "method" in message]

    def app(self) -> Starlette:
        allowed: dict[str, Any] = {
            "allow_origins": self.origins,
            "allow_methods": ["POST"],
            "allow_headers": ["Content-Type", "Mcp-Session-Id", "MCP-Protocol-Version", *(self.key or ())[:1]],
            "expose_headers": self.exposed,
        }
        cors = [Middleware(CORSMiddleware, **allowed)] if self.origins else []
        return Starlette(routes=[Route("/mcp", self._take, methods=["POST"])], middleware=cors)

    async def _take(self, request: Request) -> Response:
        message = await request.json()
        self.asked.append(message)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return Response(status_code=self.status)
        if self.key is not None and request.headers.get(self.key[0]) != self.key[1]:
            return Response(status_code=401)
        if message.get("method") == "initialize":
            told = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": {"name": "test"}}
            return JSONResponse(_result(message, told), headers={"Mcp-Session-Id": self.session})
        given = request.headers.get("mcp-session-id")
        if given != self.session:
            return Response(status_code=404 if given else 400)
        if "id" not in message or "method" not in message:
            return Response(status_code=202)
        if message["method"] == "tools/list":
            second = message["params"].get("cursor") == "2"
            more = [DRAW] if self.drawn else []
            listed: dict[str, Any] = {"tools": [FAIL, *more]} if second else {"tools": [ADD], "nextCursor": "2"}
            return JSONResponse(_result(message, listed))
        return StreamingResponse(self._called(message), media_type="text/event-stream")

    async def _called(self, message: dict[str, Any]) -> AsyncIterator[str]:
        yield ": a comment\n\n"
        yield _event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "working"}})
        yield _event({"jsonrpc": "2.0", "id": PINGED, "method": "ping"})
        given = message["params"]
        if given["name"] == "add":
            text = str(given["arguments"]["a"] + given["arguments"]["b"])
            yield _event(_result(message, {"content": [{"type": "text", "text": text}]}))
        elif given["name"] == "draw":
            picture = {"type": "image", "data": self.drawn, "mimeType": "image/png"}
            sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
            empty = {"type": "image", "mimeType": "image/png"}
            yield _event(_result(message, {"content": [{"type": "text", "text": "Drawn."}, picture, sound, empty]}))
        else:
            content = [{"type": "text", "text": "<img src=x onerror='window.hit = 1'>"}]
            yield _event(_result(message, {"content": content, "isError": True}))


def _result(message: dict[str, Any], result: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _event(message: object) -> str:
    return f"event: message\r\ndata: {json.dumps(message)}\r\n\r\n"


@contextmanager
def mcp_server(**more: Any) -> Iterator[McpServer]:
    """An McpServer on a free port, until the end of `with`. more: its fields."""
    server = McpServer(**more)
    with serving(server.app()) as address:
        server.url = f"{address}/mcp"
        yield server
