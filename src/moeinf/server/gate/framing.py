"""Requests whose beginning and end nobody can read in two ways: the rest of RFC 9112 is refused.

h11 also takes forms that the standard forbids or leaves to the reader. A proxy may find another end of a request in
them, and what one of the two takes for a body would be a request to the other.
"""

from __future__ import annotations

import re
from typing import Final

import h11

MOST_TARGET: Final = 8 << 10  # bytes of a path with its query
MOST_HEAD: Final = 32 << 10  # bytes before a body, and behind one
MOST_FIELDS: Final = 100
_BROKEN_LINE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class StrictConnection(h11.Connection):
    """h11's for a server, which refuses such requests, and keeps why in `refused`: a status and one line."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MOST_HEAD)
        self.refused: tuple[int, str] | None = None
        self.chunked = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Raises h11.RemoteProtocolError."""
        try:
            if self.their_state is h11.IDLE:
                check_head(self.trailing_data[0])
            before = self.trailing_data[0] if self.chunked else b""
            event = super().next_event()
            if isinstance(event, h11.Request):
                self.chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            elif isinstance(event, h11.EndOfMessage) and self.chunked:
                self.chunked = False
                check_fields(before[: len(before) - len(self.trailing_data[0])], len(list(event.headers)))
        except h11.RemoteProtocolError as error:
            self.refused = self.refused or (400, "this is no request of HTTP/1.1")
            if isinstance(error, Malformed):
                self.refused = error.error_status_hint, str(error)
            raise
        return event


class Malformed(h11.RemoteProtocolError):
    """A request that is refused with this status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, error_status_hint=status)


def check_head(received: bytes) -> None:
    """Raises Malformed for the head of a request, or for its beginning; what stands behind it may be anything."""
    end = received.find(b"\r\n\r\n")
    head = received if end < 0 else received[: end + 2]
    line, _, rest = head.partition(b"\r\n")
    if len(line) > MOST_TARGET:
        raise Malformed(f"a path may have {MOST_TARGET >> 10} KiB", 414)
    fields = rest.split(b"\r\n")[:-1]
    check_fields(head, len(fields))
    if end < 0:
        return
    _, target, version = [*line.split(b" "), b"", b"", b""][:3]
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise Malformed("the version of a request must be HTTP/1.1 or HTTP/1.0")
    if not target.startswith(b"/"):
        raise Malformed("a request must name a path: this is no proxy")
    named = [field.partition(b":") for field in fields]
    lengths = [value.strip(b" \t") for name, _, value in named if name.lower() == b"content-length"]
    chunked = any(name.lower() == b"transfer-encoding" for name, _, _ in named)
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        raise Malformed("a request may have one Content-Length, which is a number")
    if chunked and (lengths or version == b"HTTP/1.0"):
        raise Malformed("Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0")


def check_fields(received: bytes, count: int) -> None:
    """Raises Malformed for lines of headers, or of what follows the last chunk of a body: so many of them."""
    if len(received) > MOST_HEAD or count > MOST_FIELDS:
        raise Malformed(f"a request may have {MOST_FIELDS} headers and {MOST_HEAD >> 10} KiB of them", 431)
    if _BROKEN_LINE.search(received):
        raise Malformed("each header must be one line, which ends in CR and LF and has no other control character")
