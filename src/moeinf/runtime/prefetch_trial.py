"""Does prefetch pay on the machine at hand? Tokens go with it and without, and the clock tells."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Final, NamedTuple

from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.prefetch_opening import Opening, TokenCost, trimmed_mean

FIRST_PERIOD: Final = 256  # tokens from one trial to the next; doubled each time a trial changes nothing
LONGEST_PERIOD: Final = 4096
PATTERN: Final = (True, False, False, True)  # blocks with prefetch and without: neither always follows the other
SHORTEST_HALF: Final = 4  # tokens of either half of a block
LONGEST_HALF: Final = 16
KEPT: Final = 3  # trials whose times decide
MARGIN: Final = 0.01  # that one kind has to be faster by, as times swing


class _Counts(NamedTuple):
    """What was counted so far."""

    stall_s: float
    host_s: float
    demanded: int
    ahead: int
    used: int


def _counts_of(stats: CacheStats, host_s: float) -> _Counts:
    return _Counts(stats.stall_s, host_s, stats.demand_reads, stats.prefetches, stats.prefetches_used)


class PrefetchTrial:
    """Says of each token whether it is to go with prefetch, and times those of trials from first layer to last.

    What a prefetch saves the link, and what its submission takes, Admission weighs. What guesses take of the host, and
    reads of the memory and the cores that compute, shows in nothing but the time of a token: where experts that are
    missing are few, or the disk is fast, that may be more than prefetch saves.

    While slots are still empty, tokens go without: taking fresh memory from the machine keeps its cores busy, and the
    times say nothing of what comes later. The first tokens behind that are an Opening, whose verdict serves until the
    first trial. Wasted reads evict what later tokens need. So a trial goes by blocks: the first half of each lasts
    until half of the slots have got another expert, and is not timed; the second half, as long, meets a cache that its
    own kind has made.
    """

    def __init__(self, num_slots: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.on = False  # for the running token
        self._pays = False  # as far as is known
        self._num_slots = num_slots
        self._clock = clock
        self._period = self._until_trial = FIRST_PERIOD
        self._block: int | None = None  # of the running trial
        self._tokens = 0  # of the block, so far
        self._untimed: int | None = None  # of them, once half of the slots have changed
        self._read_before = 0
        self._times: dict[bool, deque[list[float]]] = {kind: deque(maxlen=2 * KEPT) for kind in (True, False)}
        self._began_s: float | None = None
        self._opening: Opening | None = Opening()
        self._open = False  # the running token counts in it
        self._at_first_layer = _Counts(0.0, 0.0, 0, 0, 0)

    def first_layer(self, stats: CacheStats, host_s: float) -> None:
        """A token has come to the first layer that has experts.

        stats: of the cache; host_s: what guesses, choice and submission have taken of the host, up to now.
        """
        self._began_s = self._clock()
        if self._opening is not None:
            self._at_first_layer = _counts_of(stats, host_s)

    def last_layer(self, stats: CacheStats, host_s: float, regret: float, *, full: bool) -> None:
        """It has come to the last one, which no prefetch is for.

        regret: reads that each wasted one causes. full: no slot is empty.
        """
        if self._began_s is None:
            return  # it was not seen from the beginning
        seconds, self._began_s = self._clock() - self._began_s, None
        if self._opening is not None:
            if self._open or full:
                self._continue_opening(self._opening, _counts_of(stats, host_s), regret)
            return
        num_read = stats.demand_reads + stats.prefetches
        if self._block is not None:
            self._count(self._block, seconds, num_read)
            return
        self._until_trial -= 1
        if not self._until_trial:
            self._begin_block(0, num_read)

    def _continue_opening(self, opening: Opening, now: _Counts, regret: float) -> None:
        if self._open:
            before = self._at_first_layer
            used = now.used - before.used
            needed, wasted = now.demanded - before.demanded + used, max(0, now.ahead - before.ahead - used)
            stall_s, host_s = now.stall_s - before.stall_s, now.host_s - before.host_s
            opening.count(self.on, TokenCost(stall_s, host_s, needed, wasted))
        self._open = True
        kind = opening.next_kind
        if kind is None:
            kind = self._pays = opening.gain_s(regret) > 0
            self._opening = None
        self.on = kind

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
