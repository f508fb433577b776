"""Clients that have ended their side of a connection, and wait for the answer: `nc -N` does so, and some proxies do."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class HalfClosedProtocol(H11Protocol):
    """uvicorn's protocol, which takes the end of what a client sends for the end of the client.

    Until the answer begins, a client of HTTP/1.1 is asked instead: it is sent `100 Continue`, which every client passes
    over (RFC 9110, 15.2), and which the system of one that has gone refuses; the next write then ends the connection.
    HTTP/1.0 has nothing of that kind, and a stream that has begun tells by itself.

    ask_s: so long behind the end it is asked again, and each time twice as long behind the last.
    """

    ask_s: ClassVar[float] = 0.5
    _asking: asyncio.TimerHandle | None = None
    _ended = False

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open."""
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)  # a request, of which the answer is due
        self._ended = whole and self.conn.their_http_version == b"1.1"
        if not self._ended or self.conn.our_state is not h11.SEND_RESPONSE:
            return False
        self._ask(self.ask_s)
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._ended and self.conn.their_state is h11.DONE:  # a further request, which had come with it
            self._ask(self.ask_s)
        elif self._ended:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._asking is not None:
            self._asking.cancel()
        super().connection_lost(exc)

    def _ask(self, wait_s: float) -> None:
        if self.conn.our_state is h11.SEND_RESPONSE and not self.transport.is_closing():
            event = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(event) or b"")
            self._asking = self.loop.call_later(wait_s, self._ask, 2 * wait_s)
