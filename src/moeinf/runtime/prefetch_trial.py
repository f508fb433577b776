"""Does prefetch pay on the machine at hand? Some tokens go without it, and the clock tells."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

FIRST_PERIOD: Final = 16  # tokens from one trial to the next; doubled each time a trial changes nothing
LONGEST_PERIOD: Final = 512
PATTERN: Final = (True, False, False, True)  # with prefetch and without: neither always follows the other
TRIAL_TOKENS: Final = 16
KEPT: Final = 24  # times of each kind: those of the last three trials
MARGIN: Final = 0.01  # that one kind has to be faster by, as times swing


class PrefetchTrial:
    """Says of each token whether it is to go with prefetch, and times those of trials from first layer to last.

    What a prefetch saves the link, Admission weighs. What it costs the host, to guess, to choose and to submit, and the
    memory and the cores that reads take from computing, shows in nothing but the time of a token: where experts that
    are missing are few, or the disk is fast, that may be more than it saves. A guess serves the next layers of its own
    token, so tokens can go by turns. What wasted reads evict, tokens without prefetch pay for too: that is not seen.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.on = True  # for the running token
        self._pays = True  # as far as is known
        self._clock = clock
        self._period = FIRST_PERIOD
        self._until_trial, self._of_trial = FIRST_PERIOD, 0  # tokens left of either
        self._times: dict[bool, deque[float]] = {kind: deque(maxlen=KEPT) for kind in (True, False)}
        self._began_s: float | None = None

    def first_layer(self) -> None:
        """A token has come to the first layer that has experts."""
        self._began_s = self._clock()

    def last_layer(self) -> None:
        """It has come to the last one, which no prefetch is for."""
        if self._began_s is None:
            return  # it was not seen from the beginning
        if self._of_trial:
            self._times[self.on].append(self._clock() - self._began_s)
            self._of_trial -= 1
            if not self._of_trial:
                self._decide()
        else:
            self._until_trial -= 1
            if not self._until_trial:
                self._of_trial = TRIAL_TOKENS
        self._began_s = None
        self.on = PATTERN[self._of_trial % len(PATTERN)] if self._of_trial else self._pays

    def _decide(self) -> None:
        with_s, without_s = median(self._times[True]), median(self._times[False])
        before = self._pays
        if without_s < with_s * (1 - MARGIN):
            self._pays = False
        elif with_s < without_s * (1 - MARGIN):
            self._pays = True
        if self._pays != before:
            self._times[True].clear()
            self._times[False].clear()
        self._period = FIRST_PERIOD if self._pays != before else min(2 * self._period, LONGEST_PERIOD)
        self._until_trial = self._period
