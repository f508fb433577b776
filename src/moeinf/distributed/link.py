"""A connection of two machines that know each other: bytes of known numbers, within times that are given.

Behind each message comes the beginning of an HMAC-SHA-256 of its number and its bytes, by a key of this connection and
this direction: what was changed, left out, repeated, or sent back on its way is not taken for the other's.
"""

from __future__ import annotations

import errno
import hmac
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from moeinf.distributed.proof import Keys
from moeinf.types import ByteArray

TICK_S: Final = 0.25  # between two looks at whether a wait is to end
MAC_BYTES: Final = 16  # of 32: who guesses has one try, and then the connection has ended
_SMALL_BYTES: Final = 1 << 16  # a message that is cheaper to copy than to send in two
_ENDED: Final = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN, errno.EBADF)


class LostError(Exception):
    """The other machine has gone, or did not answer in time. Says why."""


class MalformedError(LostError):
    """The other machine has sent what cannot be meant. Says what."""


def _view(data: ByteArray | bytes | bytearray) -> memoryview:
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def printable(text: bytes | bytearray) -> str:
    """Text of the other machine as one line, which does nothing to a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text.decode("utf-8", "replace"))


class _Signature:
    """Of the messages of one direction, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._started, self._number = hmac.new(key, digestmod="sha256"), 0

    def of(self, data: memoryview) -> bytes:
        """The MAC of the next message [MAC_BYTES]."""
        mac = self._started.copy()
        mac.update(self._number.to_bytes(8, "big"))
        mac.update(data)
        self._number += 1
        return mac.digest()[:MAC_BYTES]


class Link:
    """One end of a connection. Used by one thread at a time, but `break_off`, which any may call.

    Each `send` of one end is one `receive` of the other, once `sign` was called at both.
    """

    def __init__(self, connected: socket.socket, keys: Keys | None = None) -> None:
        """Takes the socket over. keys: see `sign`."""
        with suppress(OSError):  # what is sent is late without it, and no less right
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(TICK_S)
        self._socket, self._why = connected, ""
        self._ours: _Signature | None = None
        self._theirs: _Signature | None = None
        if keys is not None:
            self.sign(keys)

    def sign(self, keys: Keys) -> None:
        """From now on all messages of both ends are signed."""
        self._ours, self._theirs = map(_Signature, keys)

    def send(self, data: ByteArray | bytes, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        """Returns when the system has taken all of data.

        look() is called every TICK_S while it waits, and may raise. Raises LostError; then the link is of no use more.
        """
        message = _view(data)
        if self._ours is not None and message:
            mac = self._ours.of(message)
            if len(message) > _SMALL_BYTES:
                self._move(self._socket.send, message, seconds, look)
                message = memoryview(mac)
            else:
                message = memoryview(bytes(message) + mac)
        self._move(self._socket.send, message, seconds, look)

    def receive(self, data: ByteArray | bytearray, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        """Fills data. As `send`; raises MalformedError for what is not signed as it should be."""
        message = _view(data)
        self._move(self._socket.recv_into, message, seconds, look)
        if self._theirs is None or not message:
            return
        mac = bytearray(MAC_BYTES)
        self._move(self._socket.recv_into, memoryview(mac), seconds, look)
        if not hmac.compare_digest(mac, self._theirs.of(message)):
            raise MalformedError("what it sent was changed on its way")

    def _move(
        self, some: Callable[[memoryview], int], left: memoryview, seconds: float, look: Callable[[], None]
    ) -> None:
        give_up_at = time.monotonic() + seconds
        while left:
            try:
                count = some(left)
            except TimeoutError:
                look()
            except OSError as error:
                raise self._lost(error) from None
            else:
                if not count:
                    raise LostError(self._why or "its connection has ended")
                left = left[count:]
            if left and time.monotonic() > give_up_at:
                raise LostError(self._why or "it does not answer")

    def break_off(self, why: str = "") -> None:
        """Ends every wait of both machines with LostError, which says why at this one."""
        self._why = self._why or why
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Breaks off, and gives the descriptor back: nobody may wait here any more."""
        self.break_off()
        self._socket.close()

    def _lost(self, error: OSError) -> LostError:
        if error.errno in _ENDED:
            return LostError(self._why or "its connection has ended")
        return LostError(self._why or (error.strerror or "its connection has failed"))
