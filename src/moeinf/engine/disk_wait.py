"""What happens while a read is waited for: the user hears of it when it takes long, and can end the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from moeinf.sampling.loop import Interrupted

FIRST_S: Final = 5.0  # a disk that spins up takes no longer
AGAIN_S: Final = 30.0


class DiskWait:
    """moeinf.types.OnWait of all readers of a model: nothing but the disk's answer, or this, ends their waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """say(line): told after FIRST_S of a wait, and again each AGAIN_S."""
        self.should_stop: Callable[[], bool] = never  # of the answer that is being made
        self._say = say
        self._due_s = FIRST_S

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
