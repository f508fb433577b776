"""Slots of host memory that are given back while other processes need it, and taken again when they are done."""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from moeinf.errors import LIMIT_REMEDIES
from moeinf.hardware import MemoryState, memory_now, return_freed_memory
from moeinf.runtime.cache.tier import ExpertTier

LOOK_S: Final = 1.0  # between two looks at the machine
SHORT_LOOK_S: Final = 0.1  # the same while memory is short, when a second may be too late
STALLED: Final = 0.1  # share of the time in which something waits for memory: then twice the reserve is kept free


class MemoryWatch:
    """Resizes a tier of host memory so that `reserve_bytes` stay available to others.

    A thread looks once a second, so nothing is read where tokens are made, and memory is given back while a chat waits
    for its user as well. It acts when less than half of the reserve is left, and again when one and a half is: then
    the reserve is left as it should be, and small changes move nothing. The thread lives on whatever a look raises,
    and ends where the watch is forgotten without `close`.
    """

    def __init__(
        self,
        tier: ExpertTier,
        least_slots: int,
        reserve_bytes: int,
        notice: Callable[[str], None],
        memory: Callable[[], MemoryState] = memory_now,
        clock: Callable[[], float] = time.monotonic,
        give_back: Callable[[], None] = return_freed_memory,
    ) -> None:
        """least_slots: how many are never given back. notice(text) is told once, when the first slots are. give_back()
        gives the system what this process has freed."""
        self.spare: Callable[[int], int] = lambda num_bytes: 0  # of what goes before experts do: see `look`
        self._tier = tier
        self._least_slots = least_slots
        self._reserve_bytes = reserve_bytes
        self._notice, self._said, self._failed = notice, False, False
        self._memory = memory
        self._clock, self._give_back = clock, give_back
        self._was_short = False
        self._looked_s, self._stall_s = clock(), memory().stall_s
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closed), name="moeinf-memory", daemon=True
        )

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread to give
            self._notice(
                "no thread could be started to watch memory, so the expert cache stays as it is while others "
                f"need some; {LIMIT_REMEDIES[errno.EAGAIN]}"
            )

    def close(self) -> None:
        """Ends the thread: no look is taken any more."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> bool:
        """Resizes the tier where that is due; returns whether memory is short.

        What was freed goes first, once each time that memory gets short. Then `spare` is asked to give back so many
        bytes, and returns how many it did; with a negative number it is told how many it may take again, once the tier
        has all of its slots.
        """
        tier, state, now = self._tier, self._memory(), self._clock()
        stalled = state.stall_s - self._stall_s > STALLED * (now - self._looked_s)
        self._looked_s, self._stall_s = now, state.stall_s
        wanted_bytes = 2 * self._reserve_bytes if stalled else self._reserve_bytes
        left_bytes = state.available_bytes - tier.untaken_bytes
        if 2 * left_bytes < wanted_bytes and not self._was_short:
            self._give_back()
            left_bytes = self._memory().available_bytes - tier.untaken_bytes
        self._was_short = 2 * left_bytes < wanted_bytes
        if wanted_bytes <= 2 * left_bytes <= 3 * wanted_bytes:
            return False
        short = left_bytes < wanted_bytes
        if short or tier.num_slots == tier.most_slots:
            left_bytes += self.spare(wanted_bytes - left_bytes)
        before = tier.num_slots
        num_slots = max(self._least_slots, tier.slots_in(tier.num_bytes + left_bytes - wanted_bytes))
        if num_slots != before and tier.resize(num_slots) and num_slots < before and not self._said:
            self._notice(
                f"the {state.limited_by} ran short of memory: {100 * (before - num_slots) // before} % of the experts "
                "left the cache, which gives memory back while others need it and takes it again afterwards"
            )
            self._said = True
        return short

    def _look_guarded(self) -> bool:
        """As `look`; where that raises, tells so once, and the next look is taken as if nothing was short."""
        try:
            return self.look()
        except BaseException as error:
            if not self._failed:
                self._failed = True
                with suppress(BaseException):
                    self._notice(f"a look at the machine's memory failed, and the next follows: {error!r}")
            return False


def _watch(watch: weakref.ref[MemoryWatch], closed: threading.Event) -> None:
    """The life of the thread."""
    pause_s = LOOK_S
    while not closed.wait(pause_s) and (looking := watch()) is not None:
        pause_s = SHORT_LOOK_S if looking._look_guarded() else LOOK_S
        del looking
