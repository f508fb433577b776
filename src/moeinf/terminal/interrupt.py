"""Ctrl-C while an answer is made: the first one asks for its end, a second one ends the command."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

SECOND_INTERRUPT_S = 1.0


class Interrupt:
    """While entered, the first Ctrl-C only asks for a stop; a second one within a second raises KeyboardInterrupt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.wanted = False
        self._clock = clock
        self._last_s = float("-inf")

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if now - self._last_s < SECOND_INTERRUPT_S:
            raise KeyboardInterrupt
        self.wanted, self._last_s = True, now
