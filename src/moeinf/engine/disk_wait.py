"""Tells the user when a read takes long, and lets the answer be ended meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moeinf.sampling.loop import Interrupted

FIRST_S: Final = 5.0  # a disk that spins up takes no longer
AGAIN_S: Final = 30.0


class DiskWait:
    """All readers of a model call it while they wait (OnWait of reader_protocol.py); it may end the wait."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """say(line) is called after FIRST_S of a wait, and again every AGAIN_S."""
        self.should_stop: Callable[[], bool] = never  # of the answer that is being made
        self._say = say
        self._due_s = FIRST_S

    def asked(self) -> bool:
        """Whether the answer that is being made is to stop."""
        return self.should_stop()

    def __call__(self, waited_s: float, path: str) -> None:
        """Raises Interrupted where the answer is to stop."""
        if self.should_stop():
            raise Interrupted
        if waited_s < FIRST_S:
            self._due_s = FIRST_S
        elif waited_s >= self._due_s:
            self._due_s += AGAIN_S
            self._say(f"waiting for the disk: {waited_s:.0f} s for {path}")


def never() -> bool:
    return False
