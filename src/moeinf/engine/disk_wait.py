"""Tells the user when a read takes long, and lets the answer be ended meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moeinf.sampling.step_queue import Interrupted

FIRST_S: Final = 5.0  # a disk that spins up takes no longer
AGAIN_S: Final = 30.0


class DiskWait:
    """All readers of a model call it while they wait (OnWait of reader_protocol.py); it may end the wait."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """say(line) is called after FIRST_S of a wait, and again every AGAIN_S."""
        self.should_stop: list[Callable[[], bool]] = []  # of each answer that is being made
        self._say = say
        self._due_s = FIRST_S

    def asked(self) -> bool:
        """Whether all answers that are being made are to stop."""
        return bool(self.should_stop) and all(should_stop() for should_stop in self.should_stop)

    def __call__(self, waited_s: float, path: str) -> None:
        """Raises Interrupted where nobody waits any more."""
        if self.asked():
            raise Interrupted
        if waited_s < FIRST_S:
            self._due_s = FIRST_S
        elif waited_s >= self._due_s:
            self._due_s += AGAIN_S
            self._say(f"waiting for the disk: {waited_s:.0f} s for {path}")
