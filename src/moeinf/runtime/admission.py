"""Which prefetches are worth their time on the link: by its load, and by what came of those before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

LEAST: Final = 0.15  # priority: what is below is not looked at
BUCKETS: Final = 10  # of priorities, of equal width; the last has all above
PRIOR: Final = 8.0  # experts that a bucket's share begins with, at its own priority
MEMORY: Final = 400.0  # experts that a bucket's share goes back to
SMOOTHING: Final = 0.005  # weight of the last visit in what visits miss; 0.02 follows chance, and loses
HOST_SMOOTHING: Final = 0.02  # weight of the last submission in what one takes
REGRET: Final = 0.5  # of the share of experts that are missed: how likely the victim of a prefetch would have been used


class Admission:
    """Chooses among experts that may be read ahead, by the probability that they will be used.

    Predictors say how likely an expert is to be used, and not how likely one is that the cache lacks. So that is
    counted for each bucket of priorities, of all that were looked at, whether they were read or not; and of the visits,
    how many have to read an expert and how many of their experts they miss.
    """

    def __init__(self, num_experts: int) -> None:
        """num_experts: keys of a layer."""
        middles = (np.arange(BUCKETS) + 0.5) / BUCKETS
        self._num_experts = num_experts
        self._seen = [PRIOR] * BUCKETS
        self._used: list[float] = (PRIOR * middles).tolist()
        self._waiting: dict[int, int] = {}  # what was looked at -> its bucket, when it was first seen
        self._demand = 1.0  # share of visits that read an expert
        self._missed = 0.5  # share of experts that are read when a visit needs them
        self._host = 0.0  # what the host takes to ask for a read, as a share of the read

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
