"""What is read ahead: which experts by the load of the link and by what came of others, and whether any by the clock.

One inequality stands behind both: what is saved if an expert is used has to exceed what is lost if it is not. Of one
read both sides are reckoned in reads of the link (`floor`); of all reads of a token both are what the clock says of
tokens that go with prefetch, and of others that go without, for as many reads (`PairedTokens`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from moeinf.runtime.cache.stats import CacheStats

LEAST: Final = 0.15  # priority: what is below is not looked at
BUCKETS: Final = 10  # of priorities, of equal width; the last has all above
PRIOR: Final = 8.0  # experts that a bucket's share begins with, at its own priority
MEMORY: Final = 400.0  # experts that a bucket's share goes back to
SMOOTHING: Final = 0.005  # weight of the last visit in what visits miss; 0.02 follows chance, and loses
HOST_SMOOTHING: Final = 0.02  # weight of the last submission in what one takes
REGRET: Final = 0.5  # of the share of experts that are missed: how likely the victim of a prefetch would have been used

LEAST_PAIRS: Final = 5  # of a trial
FIRST_PAIRS: Final = 12  # at most, of the first trial
MOST_PAIRS: Final = 64  # at most, of each later one
APART: Final = 4.0  # of a pair whose times differ by more, one token waited for something else
KEPT: Final = 0.7  # of what is known, from a sure trial to the next
LIKELY: Final = 1.0  # standard errors from which on a trial's difference decides, though it is not sure
REST: Final = 3  # lengths of an unsure trial after which the next begins
FIRST_PERIOD: Final = 64  # tokens from a sure trial to the next; doubled each time that it says the same
LONGEST_PERIOD: Final = 2048


class PairedTokens:
    """How much longer a token takes with prefetch than without, for as many reads: a line through pairs of neighbours.

    y = excess_s + read_s * x: y seconds and x needed reads that the token with prefetch has more. What slows the
    machine for some time slows both tokens of a pair, and how many experts a token happens to miss is in the slope.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(7)  # of 1, x, y, x x, x y, y y, and of reads ahead that were not used

    @property
    def count(self) -> float:
        return float(self._sums[0])

    def add(self, reads: int, seconds: float, wasted: int) -> None:
        """reads, seconds: of the token with prefetch, less those of the one without."""
        self._sums += (1, reads, seconds, reads**2, reads * seconds, seconds**2, wasted)

    def fade(self, share: float) -> None:
        self._sums *= share

    def excess_s(self, regret: float) -> tuple[float, float]:
        """Below 0 where prefetch pays; and the standard error. regret: further reads that each wasted one causes."""
        n, x, y, xx, xy, yy, wasted = self._sums.tolist()
        if n < LEAST_PAIRS - 2:
            return 0.0, math.inf
        xx, xy, yy = xx - x * x / n, xy - x * y / n, yy - y * y / n
        read_s = max(0.0, xy / xx) if xx > 1e-9 else 0.0
        variance = max(0.0, yy - 2 * read_s * xy + read_s**2 * xx) / (n - 2)
        share = 1 / n + ((x / n) ** 2 / xx if read_s else 0.0)
        return (y - read_s * x + regret * read_s * wasted) / n, math.sqrt(variance * share)


class _Token(NamedTuple):
    seconds: float
    needed: int  # experts that were read for it: on demand, or ahead and used
    wasted: int  # that were read ahead and not used


class PrefetchGate:
    """Says which experts are worth reading ahead, and of each token whether it goes with prefetch at all.

    Predictors say how likely an expert is to be used, and not how likely one is that the cache lacks. So that is
    counted for each bucket of priorities, of all that were looked at, whether they were read or not; and of the visits,
    how many have to read an expert and how many of their experts they miss.

    What guesses take of the host, and reads of the memory and the cores that compute, shows in nothing but the time of
    a token. So tokens go with prefetch and without by turns, in trials, until it is sure which are faster. While slots
    are empty they go without and say nothing: fresh memory from the machine keeps its cores busy.
    """

    def __init__(
        self, num_experts: int, *, tries: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """num_experts: keys of a layer. tries: the clock decides which tokens go with prefetch; else all do."""
        self.open = not tries  # for the running token
        middles = (np.arange(BUCKETS) + 0.5) / BUCKETS
        self._num_experts = num_experts
        self._seen = [PRIOR] * BUCKETS
        self._used: list[float] = (PRIOR * middles).tolist()
        self._waiting: dict[int, int] = {}  # what was looked at -> its bucket, when it was first seen
        self._demand = 1.0  # share of visits that read an expert
        self._missed = 0.5  # share of experts that are read when a visit needs them
        self._host = 0.0  # what the host takes to ask for a read, as a share of the read

        self._tries, self._clock = tries, clock
        self._pairs = PairedTokens()
        self._began: _Token | None = None  # what the clock and the counters said when the running token began
        self._first: _Token | None = None  # of the running pair, where its second token runs
        self._until_trial = 1  # tokens; 0: one runs
        self._num_tried, self._most_pairs = 0, FIRST_PAIRS  # pairs of the running trial
        self._pays, self._period = False, FIRST_PERIOD
        self._last_verdict: bool | None = None  # of a trial that was sure

    # ---- one read

    def choose(self, keys: Sequence[int], priorities: Sequence[float], place: int, window: float) -> list[int]:
        """Returns which of these absent experts, by index, are worth a read; `learn` will tell what became of all.

        place: how many reads are queued before them. window: how many the link has time for until the next visit.
        """
        waiting, seen, used = self._waiting, self._seen, self._used
        demand, regret, host = self._demand, self.regret, self._host
        chosen: list[int] = []
        for index, (key, priority) in enumerate(zip(keys, priorities, strict=True)):
            bucket = bucket_of(priority)
            waiting.setdefault(key, bucket)
            if used[bucket] > seen[bucket] * floor(place + 1 - window, window, demand, regret, host):
                chosen.append(index)
                place += 1
        return chosen

    @property
    def regret(self) -> float:
        """How likely what a prefetch evicts has to be read again, if the prefetch itself is not used."""
        return REGRET * self._missed

    def submitted(self, reads: float, count: int) -> None:
        """Asking for `count` reads took the host as long as the link takes for so many."""
        self._host += HOST_SMOOTHING * (min(1.0, reads / count) - self._host)  # at most 1: the host may have been busy

    def learn(self, layer: int, needed: Sequence[int], num_absent: int) -> None:
        """`layer` runs for one token and needs these keys, of which so many are neither resident nor on their way."""
        self._demand += SMOOTHING * ((num_absent > 0) - self._demand)
        self._missed += SMOOTHING * (num_absent / max(1, len(needed)) - self._missed)
        waiting = self._waiting
        if not waiting:
            return
        first_key = layer * self._num_experts
        for key in [key for key in waiting if key < first_key + self._num_experts]:
            bucket = waiting.pop(key)
            if key < first_key:
                continue  # its layer did not run
            if self._seen[bucket] >= MEMORY:
                self._seen[bucket] *= 0.5
                self._used[bucket] *= 0.5
            self._seen[bucket] += 1
            self._used[bucket] += key in needed

    # ---- all reads of a token

    def first_layer(self, stats: CacheStats) -> None:
        """A token has come to the first layer that has experts; stats: of the cache."""
        if self._tries:
            self._began = self._now(stats)

    def last_layer(self, stats: CacheStats, *, full: bool) -> None:
        """It has come to the last one, which no prefetch is for. full: no slot is empty."""
        began, self._began = self._began, None
        if began is None or not full:
            return  # it was not seen from the beginning, or says nothing
        if self._until_trial:
            self._until_trial -= 1
            if not self._until_trial:
                self._num_tried, self.open = 0, True
            return
        now = self._now(stats)
        token = _Token(now.seconds - began.seconds, now.needed - began.needed, max(0, now.wasted - began.wasted))
        if self._first is None:
            self._first, self.open = token, not self.open
            return
        with_it, without = (token, self._first) if self.open else (self._first, token)
        self._first = None  # the next pair begins with the kind that this one ends with: neither always comes second
        self._count(with_it, without)

    def _now(self, stats: CacheStats) -> _Token:
        used = stats.prefetches_used
        return _Token(self._clock(), stats.demand_reads + used, stats.prefetches - used)

    def _count(self, with_it: _Token, without: _Token) -> None:
        self._num_tried += 1
        if max(with_it.seconds, without.seconds) < APART * min(with_it.seconds, without.seconds):
            self._pairs.add(with_it.needed - without.needed, with_it.seconds - without.seconds, with_it.wasted)
        excess_s, error_s = self._pairs.excess_s(self.regret)
        sure = self._num_tried >= LEAST_PAIRS and abs(excess_s) > sure_errors(self._pairs.count) * error_s
        if not sure and self._num_tried < self._most_pairs:
            return
        self._most_pairs = MOST_PAIRS
        if sure or abs(excess_s) > LIKELY * error_s:
            self._pays = excess_s < 0
        if sure:
            self._period = min(2 * self._period, LONGEST_PERIOD) if self._pays == self._last_verdict else FIRST_PERIOD
            self._last_verdict = self._pays
            self._pairs.fade(KEPT)
        rest = 2 * self._num_tried * REST
        self._until_trial, self.open = self._period if sure else rest, self._pays


def floor(over: float, window: float, demand: float, regret: float, host: float) -> float:
    """The probability from which on a read ahead saves time.

    over: what part of it is left when the next visit begins, from 0 to 1; more counts as 1, and less as 0. window,
    demand: see delay_of. regret: the probability that what it evicts has to be read again, if it is not used itself.
    host: what asking for a read takes, as a share of the read.

    If it is used, it saves 1 - over of a read, and is asked for in any case; if not, it costs the delay, host, and
    regret * (1 + host). Both are equal at the result.
    """
    over = min(1.0, max(0.0, over))
    cost = delay_of(over, window, demand) + host + regret * (1 + host)
    return cost / (1 - over + cost) if cost else 0.0


def delay_of(over: float, window: float, demand: float) -> float:
    """How long demand waits for a read that nobody needs, in reads, on average.

    over: what is left of it at the next visit; behind each visit that reads nothing it goes on for `window` more.
    demand: the probability that a visit has to read something. So it is the sum over visits, i = 0, 1, ..., of
    (over - i * window) * demand * (1 - demand)^i, as long as something is left.
    """
    if over <= 0 or demand <= 0:
        return 0.0
    if window <= 0:
        return over  # it gets on only while a visit waits
    calm = 1 - demand
    last = int(over / window)  # the last visit that can meet it
    return over * (1 - calm ** (last + 1)) - window * calm / demand * (
        1 - (last + 1) * calm**last + last * calm ** (last + 1)
    )


def bucket_of(priority: float) -> int:
    return min(BUCKETS - 1, int(priority * BUCKETS))


def sure_errors(num_pairs: float) -> float:
    """How many standard errors are no chance, though it is asked after each pair: more of few pairs, as Student's t."""
    return 2.5 * (1 + 4 / (num_pairs - 2)) if num_pairs > 2 else math.inf
