"""A connection of two machines that know each other: bytes of known numbers, within times that are given."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from moeinf.types import ByteArray

TICK_S: Final = 0.25  # between two looks at whether a wait is to end
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


class Link:
    """One end of a connection. Used by one thread at a time, but `break_off`, which any may call."""

    def __init__(self, connected: socket.socket) -> None:
        """Takes the socket over."""
        with suppress(OSError):  # what is sent is late without it, and no less right
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(TICK_S)
        self._socket, self._why = connected, ""

    def send(self, data: ByteArray | bytes, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        """Returns when the system has taken all of data.

        look() is called every TICK_S while it waits, and may raise. Raises LostError; then the link is of no use more.
        """
        self._move(self._socket.send, data, seconds, look)

    def receive(self, data: ByteArray | bytearray, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        """Fills data. As `send`."""
        self._move(self._socket.recv_into, data, seconds, look)

    def _move(
        self,
        some: Callable[[memoryview], int],
        data: ByteArray | bytes | bytearray,
        seconds: float,
        look: Callable[[], None],
    ) -> None:
        left, give_up_at = _view(data), time.monotonic() + seconds
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
