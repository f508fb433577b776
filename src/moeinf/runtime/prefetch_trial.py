"""Does prefetch pay on the machine at hand? Blocks of tokens go with it and without, and the clock tells."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Final

FIRST_PERIOD: Final = 64  # tokens from one trial to the next; doubled each time a trial changes nothing
LONGEST_PERIOD: Final = 2048
PATTERN: Final = (True, False, False, True)  # blocks with prefetch and without: neither always follows the other
SHORTEST_HALF: Final = 4  # tokens of either half of a block
LONGEST_HALF: Final = 16
KEPT: Final = 3  # trials whose times decide
TRIMMED: Final = 8  # the slowest and the fastest of so many are left out, as other programs make single tokens wait
MARGIN: Final = 0.01  # that one kind has to be faster by, as times swing


class PrefetchTrial:
    """Says of each token whether it is to go with prefetch, and times those of trials from first layer to last.

    What a prefetch saves the link, and what its submission takes, Admission weighs. What guesses take of the host, and
    reads of the memory and the cores that compute, shows in nothing but the time of a token: where experts that are
    missing are few, or the disk is fast, that may be more than prefetch saves.

    Wasted reads evict what later tokens need. So a trial goes by blocks: the first half of each lasts until half of the
    slots have got another expert, and is not timed; the second half, as long, meets a cache that its own kind has made.
    """

    def __init__(self, num_slots: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.on = True  # for the running token
        self._pays = True  # as far as is known
        self._num_slots = num_slots
        self._clock = clock
        self._period = self._until_trial = FIRST_PERIOD
        self._block: int | None = None  # of the running trial
        self._tokens = 0  # of the block, so far
        self._untimed: int | None = None  # of them, once half of the slots have changed
        self._read_before = 0
        self._times: dict[bool, deque[list[float]]] = {kind: deque(maxlen=2 * KEPT) for kind in (True, False)}
        self._began_s: float | None = None

    def first_layer(self) -> None:
        """A token has come to the first layer that has experts."""
        self._began_s = self._clock()

    def last_layer(self, num_read: int) -> None:
        """It has come to the last one, which no prefetch is for. num_read: experts that were read so far."""
        if self._began_s is None:
            return  # it was not seen from the beginning
        seconds, self._began_s = self._clock() - self._began_s, None
        if self._block is not None:
            self._count(self._block, seconds, num_read)
            return
        self._until_trial -= 1
        if not self._until_trial:
            self._begin_block(0, num_read)

    def _count(self, block: int, seconds: float, num_read: int) -> None:
        self._tokens += 1
        if self._untimed is None:
            changed = num_read - self._read_before >= self._num_slots / 2
            if self._tokens >= (SHORTEST_HALF if changed else LONGEST_HALF):
                self._untimed = self._tokens
            return
        self._times[self.on][-1].append(seconds)
        if self._tokens == 2 * self._untimed:
            if block + 1 < len(PATTERN):
                self._begin_block(block + 1, num_read)
            else:
                self._decide()

    def _begin_block(self, block: int, num_read: int) -> None:
        self._block, self._tokens, self._untimed = block, 0, None
        self._read_before = num_read
        self.on = PATTERN[block]
        self._times[self.on].append([])

    def _decide(self) -> None:
        before = self._pays
        with_s, without_s = (trimmed_mean([*chain(*self._times[kind])]) for kind in (True, False))
        if without_s < with_s * (1 - MARGIN):
            self._pays = False
        elif with_s < without_s * (1 - MARGIN):
            self._pays = True
        if self._pays != before:
            for times in self._times.values():
                times.clear()
        self._period = FIRST_PERIOD if self._pays != before else min(2 * self._period, LONGEST_PERIOD)
        self._block, self._until_trial, self.on = None, self._period, self._pays


def trimmed_mean(values: list[float]) -> float:
    """The mean without the smallest and the largest of each TRIMMED values."""
    left_out = len(values) // TRIMMED
    kept = sorted(values)[left_out : len(values) - left_out]
    return sum(kept) / len(kept)
