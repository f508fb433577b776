"""Connections that must move: a client that sends no whole request head, or reads nothing, is cut off in time."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sys
import termios
from contextlib import suppress
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES

from moeinf.server.gate.framing import StrictConnection
from moeinf.server.gate.half_closed import HalfClosedProtocol

log = logging.getLogger("moeinf.server")
# Bytes, so that nobody's many requests, or chunks of one byte, keep the others waiting.
READ_AT_ONCE, READ_AT_ONCE_OF_CHUNKS = 16 << 10, 2 << 10
_LOOKS = 12  # so often within read_s it is looked at whether a client reads
_LINGER_S = 1.0  # after a refusal: a client that still sends would not read it if the connection were closed at once


class DeadlineProtocol(HalfClosedProtocol):
    """uvicorn's protocol, which has a deadline between two requests but none before the first and within a head.

    It has none for clients that do not read, either, and takes requests that framing.py refuses.

    head_s: from a connection's beginning, or a further request's first byte, to the end of the request's head.
    read_s: so long a client may read nothing of what it is sent.
    """

    head_s: ClassVar[float] = 10.0
    read_s: ClassVar[float] = 60.0
    conn: StrictConnection
    _deadline: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn = StrictConnection()
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that whatever waits for the client pauses writing
        self._read_at_once()
        self._start()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._between_requests() and self._deadline is None:
            self._start()
        super().data_received(data)
        self._read_at_once()
        if not self._between_requests():
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_looking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again(self._unread(), self.loop.time())

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Ends the connection, with an answer where none has begun: what stands behind the request is never run."""
        status, why = self.conn.refused or (400, msg)
        log.info("%s refused before its path was read: %d %s", self.client[0] if self.client else "-", status, why)
        if not self._between_requests():
            self.cycle.disconnected = True  # the application hears of no more
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", b"%d" % len(why)),
                (b"connection", b"close"),
            ]
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (response, h11.Data(data=why.encode("ascii")), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()
        self._refused = True
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _read_at_once(self) -> None:
        """Bounds what the next step of the event loop has of this connection; asyncio's own bound is 256 KiB."""
        self.transport.max_size = READ_AT_ONCE_OF_CHUNKS if self.conn.chunked else READ_AT_ONCE  # type: ignore[attr-defined]

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self._cut)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _look_again(self, left: int, since: float) -> None:
        """left: bytes that have waited for the client since then."""
        self._look = self.loop.call_later(self.read_s / _LOOKS, self._look_whether_it_reads, left, since)

    def _look_whether_it_reads(self, left: int, since: float) -> None:
        now, unread = self.loop.time(), self._unread()
        if unread < left:
            since = now
        elif now - since >= self.read_s:
            self.transport.abort()
            return
        self._look_again(unread, since)

    def _unread(self) -> int:
        """Bytes that the client's system has not taken yet; where this one does not say so, those not given to it."""
        handed_on = b"\0\0\0\0"
        with suppress(OSError):
            handed_on = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, handed_on)
        return self.transport.get_write_buffer_size() + int.from_bytes(handed_on, sys.byteorder)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
