"""Whether the threads that run models get on, as seen from beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
LOOK_S: Final = 1.0  # between two looks
STILL_LOOKS: Final = 8  # at which nothing has moved, before a thread counts as one that hangs
_MOVES: Final = 0.005  # of the time: a thread that waits wakes now and then to see whether it is to end


class Pulse:
    """Looks now and then whether any of the threads has used processor time, as one has that computes, or has got what
    it waits for. One that waits for what never comes uses next to none.

    So a server that reads from a slow disk is never taken for one that hangs; a thread that runs in a circle is not
    seen.
    """

    def __init__(
        self, busy: Callable[[], bool], got: Callable[[], object] = lambda: None, look_s: float = LOOK_S
    ) -> None:
        """busy: whether anybody waits for what the threads do. got: what is another thing once they get something.
        look_s: seconds between two looks."""
        self._busy, self._got, self._look_s = busy, got, look_s
        self._clocks = set[int]()  # of the threads
        self._seen, self._had = dict[int, float](), object()
        self._still = 0  # looks since something has moved
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    @property
    def hangs(self) -> bool:
        """Whether somebody waits, and nothing has moved at the last looks."""
        return self._still >= STILL_LOOKS

    def of(self, call: Callable[[], T]) -> Callable[[], T]:
        """The call, which makes the thread that calls it one of these."""

        def called() -> T:
            if hasattr(time, "pthread_getcpuclockid"):  # which macOS lacks: there no thread counts as one that hangs
                self._clocks.add(time.pthread_getcpuclockid(threading.get_ident()))
            return call()

        return called

    def end(self) -> None:
        """Looks no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._look_s):
            seen = {clock: self._used_s(clock) for clock in tuple(self._clocks)}
            used = max((used_s - self._seen.get(clock, 0.0) for clock, used_s in seen.items()), default=1.0)
            had, self._had = self._had, self._got()
            moved = used >= _MOVES * self._look_s or had != self._had or not self._busy()
            self._seen, self._still = seen, 0 if moved else self._still + 1

    def _used_s(self, clock: int) -> float:
        """Processor time of a thread, in seconds; that of one that has ended stands still."""
        try:
            return time.clock_gettime(clock)
        except OSError:
            self._clocks.discard(clock)
            return 0.0
