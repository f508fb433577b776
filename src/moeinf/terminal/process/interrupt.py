"""What signals do to a command. SIGTERM and SIGHUP unwind it, as Ctrl-C does.

While an answer is made, the first Ctrl-C only asks for its end, and a second one ends the command.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SECOND_INTERRUPT_S = 1.0
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class Ended(SystemExit):
    """Raised in the main thread when SIGTERM or SIGHUP comes. The exit code is 128 and the signal's number."""


def end_at_once(*numbers: signal.Signals) -> None:
    """Lets these signals end the process on the spot.

    The kernel does that by itself, but not to the first process of a container: that one gets only those signals which
    it has a handler for.
    """
    for number in numbers:
        signal.signal(number, _leave if os.getpid() == 1 else signal.SIG_DFL)


def unwind_at_endings() -> None:
    """Has the first SIGTERM or SIGHUP raise Ended in the main thread, and the next one end the process at once.

    One that is ignored, as SIGHUP is under nohup, stays so.
    """
    for number in _heeded():
        signal.signal(number, _unwind)


@contextmanager
def endings_told(tell: Callable[[Ended], None]) -> Iterator[None]:
    """Meanwhile, an Ended is not raised where the signal comes, but told, and raised behind this if nobody does before.

    For an event loop, which an exception out of nowhere would leave with all that it has open.
    """
    told: list[Ended] = []

    def hand_over(number: int, frame: FrameType | None) -> None:
        end_at_once_at_endings()
        told.append(Ended(128 + number))
        tell(told[0])

    before = {number: signal.signal(number, hand_over) for number in _heeded()}
    try:
        yield
    finally:
        if told:
            raise told[0]  # also where what it was told to failed at it, on a terminal that has gone
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once_at_endings() -> None:
    """Has SIGTERM and SIGHUP end the process at once, those that are ignored excepted."""
    end_at_once(*_heeded())


def _heeded() -> list[signal.Signals]:
    return [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]


def _unwind(number: int, frame: FrameType | None) -> None:
    end_at_once_at_endings()
    raise Ended(128 + number)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


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
                told = self._told.recv(64)
                self._wanted = any(number in told for number in (signal.SIGINT, *_ENDINGS))
        return self._wanted

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if now - self._last_s < SECOND_INTERRUPT_S:
            raise KeyboardInterrupt
        self._wanted, self._last_s = True, now
