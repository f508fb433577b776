"""Where the time of a token goes: a stopwatch whose laps add up to the whole by construction."""

from __future__ import annotations

import time
from collections.abc import Callable


class Laps:
    """Attributes the time since the previous lap to a name, so nothing is counted twice or left out.

    Not thread-safe: one per running model. A lap costs about 0.2 us.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """Ends the current lap under `name`; returns its seconds."""
        now = self._clock()
        elapsed = now - self._last
        self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
        self._last = now
        return elapsed

    def restart(self) -> None:
        """Forgets the time since the last lap (between requests)."""
        self._last = self._clock()

    def snapshot(self) -> dict[str, float]:
        return dict(self.seconds)
