"""One line a request: who, what, how it ended and how long it took. Never a word of a prompt."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("moeinf.server")


class RequestLog:
    """ASGI middleware."""

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
            path = "".join(c if c.isprintable() else "?" for c in scope["path"])[:200]
            log.info(
                "%s %s %s %s %.3fs", client, scope["method"], path, status or "aborted", time.perf_counter() - started
            )
