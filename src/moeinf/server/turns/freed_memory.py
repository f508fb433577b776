"""Gives memory that answers have freed back to the system, now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from moeinf.hardware import return_freed_memory

BUSY_S: Final = 30.0  # between two times while answers are made, which they wait for
IDLE_S: Final = 1.0  # the same while none is


class FreedMemory:
    """What is freed between memory in use grows with each hour of varied answers, where nobody gives it back."""

    def __init__(
        self, give_back: Callable[[], None] = return_freed_memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._give_back, self._clock = give_back, clock
        self._given_s = clock()

    def answer_ended(self, *, idle: bool) -> None:
        """idle: whether no other answer is being made."""
        if self._clock() - self._given_s >= (IDLE_S if idle else BUSY_S):
            self._give_back()
            self._given_s = self._clock()
