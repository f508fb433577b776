"""Whether the threads that run models get on, as seen from beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from moeinf.text.process import waited_s

T = TypeVar("T")
LOOK_S: Final = 1.0  # between two looks
STILL_LOOKS: Final = 8  # at which nothing has moved, before a thread counts as one that hangs
_MOVES: Final = 0.005  # of the time: a thread that waits wakes now and then to see whether it is to end


class Pulse:
    """Looks now and then whether any of the threads has used processor time, as one has that computes, or has got what
    it waits for. One that waits for what never comes uses next to none.

    A thread also counts as moving while the system keeps it waiting for a processor or for pages of its memory, and
    while it waits for the process of a tokenizer, which has limits of its own. So a server that reads from a slow disk,
    or that other programs leave next to nothing, is never taken for one that hangs. A thread that runs in a circle is
    not seen.
    """

    def __init__(
        self, busy: Callable[[], bool], got: Callable[[], object] = lambda: None, look_s: float = LOOK_S
    ) -> None:
        """busy: whether anybody waits for what the threads do. got: what is another thing once they get something.
        look_s: seconds between two looks."""
        self._busy, self._got, self._look_s = busy, got, look_s
        self._clocks = dict[int, int]()  # of the threads, each with the number that the system has for it
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
                self._clocks[time.pthread_getcpuclockid(threading.get_ident())] = threading.get_native_id()
            return call()

        return called

    def end(self) -> None:
        """Looks no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._look_s):
            seen = {clock: self._used_s(clock, thread) for clock, thread in tuple(self._clocks.items())}
            used = max((used_s - self._seen.get(clock, 0.0) for clock, used_s in seen.items()), default=1.0)
            had, self._had = self._had, self._got()
            moved = used >= _MOVES * self._look_s or had != self._had or not self._busy()
            self._seen, self._still = seen, 0 if moved else self._still + 1

    def _used_s(self, clock: int, thread: int) -> float:
        """Processor time of a thread, and for how long it was kept waiting, in seconds; that of one that has ended
        stands still."""
        try:
            return time.clock_gettime(clock) + kept_waiting_s(thread) + waited_s(thread)
        except OSError:
            self._clocks.pop(clock, None)
            return 0.0


def kept_waiting_s(thread: int) -> float:
    """Seconds for which a thread of this process could have run and had no processor, and a hundredth of one for each
    page that it had to read from the disk; 0 where the system (Linux) does not say so."""
    try:
        folder = Path(f"/proc/self/task/{thread}")
        delay_ns = int((folder / "schedstat").read_text().split()[1])
        faults = int((folder / "stat").read_text().rpartition(")")[2].split()[9])
    except (OSError, ValueError, IndexError):
        return 0.0
    return delay_ns / 1e9 + faults / 100
