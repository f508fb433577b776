"""One line a request: who, what, how it ended and how long it took. Never a word of a prompt."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("moeinf.server")
_MOST_METHOD, _MOST_PATH = 16, 200  # characters of a line that a client has written


class RequestLog:
    """ASGI middleware. The client is who is at the other end of the connection, whatever a header says."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            client = scope["client"][0] if scope.get("client") else "-"
            method, path = scope["method"][:_MOST_METHOD], scope["raw_path"].decode("ascii", "replace")[:_MOST_PATH]
            log.info("%s %s %s %s %.3fs", client, method, path, status or "aborted", time.perf_counter() - started)
