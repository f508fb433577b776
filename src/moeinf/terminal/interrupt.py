"""Ctrl-C while an answer is made: the first one asks for its end, a second one ends the command."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

SECOND_INTERRUPT_S = 1.0


class Interrupt:
    """While entered, the first Ctrl-C only asks for a stop; a second one within a second raises KeyboardInterrupt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted = False
        self._clock = clock
        self._last_s = float("-inf")

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        self._told, self._tells = socket.socketpair()
        for end in (self._told, self._tells):
            end.setblocking(False)
        self._woke_before = signal.set_wakeup_fd(self._tells.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._woke_before)
        signal.signal(signal.SIGINT, self._before)
        self._told.close()
        self._tells.close()

    @property
    def wanted(self) -> bool:
        """Whether the answer is to end. From any thread.

        Python runs a handler when its main thread comes back from what it calls; a thread that watches over a wait has
        to know before that.
        """
        if not self._wanted and threading.current_thread() is not threading.main_thread():
            with suppress(OSError):  # nothing has come
                self._wanted = signal.SIGINT in self._told.recv(64)
        return self._wanted

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if now - self._last_s < SECOND_INTERRUPT_S:
            raise KeyboardInterrupt
        self._wanted, self._last_s = True, now
