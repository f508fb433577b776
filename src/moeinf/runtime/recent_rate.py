"""The rate of a link of late: what was measured long ago counts less and less."""

from __future__ import annotations

from typing import Final

HALF_S: Final = 5.0  # busy seconds after which a byte counts half


class RecentRate:
    """Made of totals that only grow: bytes, and the seconds in which they came."""

    def __init__(self) -> None:
        self._totals = 0.0, 0.0
        self._bytes = self._seconds = 0.0

    def per_second(self, total_bytes: float, total_seconds: float) -> float | None:
        """The rate, with what was added since the last call; None before anything came."""
        new_bytes, new_seconds = total_bytes - self._totals[0], total_seconds - self._totals[1]
        if new_seconds > 0:
            self._totals = total_bytes, total_seconds
            kept = 0.5 ** (new_seconds / HALF_S)
            self._bytes, self._seconds = kept * self._bytes + new_bytes, kept * self._seconds + new_seconds
        return self._bytes / self._seconds if self._seconds > 0 else None
