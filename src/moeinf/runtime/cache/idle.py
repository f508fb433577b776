"""How long the link idles between two visits: the time that prefetches may fill."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SMOOTHING: Final = 0.2  # weight of the last visit


def no_lag() -> float:
    return 0.0


class IdleWindow:
    """The smoothed time between the last demand read of a visit, or another moment, and the beginning of the next."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, lag_s: Callable[[], float] = no_lag, seconds: float = 0.0
    ) -> None:
        """lag_s(): for how long what has landed is still under way, where a reader says that it landed before.

        seconds: what is taken for the window until visits tell.
        """
        self.seconds = seconds
        self.clock = clock
        self._lag_s = lag_s
        self._demand_ended_s = clock()

    def visit_begins(self) -> None:
        now = self.clock()
        self.seconds += SMOOTHING * (max(0.0, now - self._demand_ended_s) - self.seconds)
        self._demand_ended_s = now

    def demand_ends(self) -> None:
        """The last expert that the visit was waiting for has landed."""
        self._demand_ended_s = self.clock() + self._lag_s()
