"""Eviction by lists of experts (segmented LRU, ARC), which have to know how many experts the cache holds.

A cache asks for scores and says nothing of what it holds. So these policies keep the lists of a cache of `num_slots`
of their own, and access the experts of a visit there one after the other, as the papers do; what their lists hold
scores above all else. Where each visit uses one expert and nothing is prefetched, the lists and the true cache hold the
same. Otherwise they differ in three ways: the true cache never evicts what the running layer needs; it makes room for
prefetches, which the lists learn of when they are used; and the lists do not follow when slots are given back to the
machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Final

import numpy as np

from moeinf.runtime.policy.counting import ranks
from moeinf.runtime.policy.policy_protocol import Listener, TokenScores
from moeinf.types import FloatArray, IntArray, MoeShape

Queue = OrderedDict[int, None]  # keys (layer * num_experts + expert), the least recently used first

OUT: Final = 0  # segments, the first of which leaves first; a score is SEGMENT * segment + the time of the last move
FIRST: Final = 1
SECOND: Final = 2
SEGMENT: Final = 2.0**44


class ScoredLists(Listener, ABC):
    """moeinf.runtime.policy.policy_protocol.DevicePolicy which scores an expert by the list that it is in."""

    step = 0

    def __init__(self, shape: MoeShape) -> None:
        self._scores: FloatArray = np.full((shape.num_layers, shape.num_experts), -1.0)
        self._by_key = self._scores.ravel()
        self._num_experts = shape.num_experts
        self._time = 0

    def observe(self, layer: int, ids: IntArray) -> None:
        for expert in ids[0].tolist() if len(ids) == 1 else np.unique(ids).tolist():
            self.access(layer * self._num_experts + expert)

    @abstractmethod
    def access(self, key: int) -> None:
        """Moves a key, which is used, through the lists."""

    def place(self, key: int, segment: int) -> None:
        """Scores a key that has come to the end of a segment."""
        self._time += 1
        self._by_key[key] = SEGMENT * segment + self._time

    def keep_scores(self, layer: int) -> FloatArray:
        return self._scores

    def token_scores(self) -> TokenScores:
        """What the token uses rises to the end of the first segment."""
        order = ranks(self._scores)
        first = self._scores < SEGMENT * SECOND
        return TokenScores(order, float(order[first].max()) + 0.5 if first.any() else -1.0)


class SegmentedLru(ScoredLists):
    """Two LRU lists: an expert enters the first, and the second when it is used again there.

    Out goes the end of the first. What the second has no room for goes back to the first, as its most recently used.
    Source: Karedla, Love and Wherry, IEEE Computer 27(3), 1994.
    """

    name = "slru"

    PROTECTED: Final = 0.8  # of the slots, for the second list at most

    def __init__(self, shape: MoeShape, num_slots: int) -> None:
        super().__init__(shape)
        self._num_slots = num_slots
        self._most_protected = int(self.PROTECTED * num_slots)
        self._trial, self._protected = Queue(), Queue()

    def access(self, key: int) -> None:
        trial, protected = self._trial, self._protected
        if key in trial or key in protected:
            trial.pop(key, None)
            protected.pop(key, None)
            self._enter(key, protected, SECOND)
            if len(protected) > self._most_protected:
                self._enter(protected.popitem(last=False)[0], trial, FIRST)
            return
        if len(trial) + len(protected) == self._num_slots:
            self.place((trial or protected).popitem(last=False)[0], OUT)
        self._enter(key, trial, FIRST)

    def _enter(self, key: int, queue: Queue, segment: int) -> None:
        queue[key] = None
        self.place(key, segment)


class AdaptiveReplacement(ScoredLists):
    """ARC: T1 holds what was used once lately, T2 what was used more often, B1 and B2 the keys that left each.

    `p`, how many slots T1 should have, grows when B1 is hit and shrinks when B2 is. Source: Megiddo and Modha, FAST
    2003, figure 4, whose cases the comments name. Where the true cache has to evict more than the lists do, T1 goes
    first.
    """

    name = "arc"

    def __init__(self, shape: MoeShape, num_slots: int) -> None:
        super().__init__(shape)
        self._c = num_slots
        self._p = 0.0
        self._t1, self._t2, self._b1, self._b2 = Queue(), Queue(), Queue(), Queue()

    def access(self, key: int) -> None:
        t1, t2, b1, b2, c = self._t1, self._t2, self._b1, self._b2, self._c
        if key in t1 or key in t2:  # I
            t1.pop(key, None)
            t2.pop(key, None)
        elif key in b1:  # II
            self._p = min(c, self._p + max(len(b2) / len(b1), 1))
            self._replace(in_b2=False)
            del b1[key]
        elif key in b2:  # III
            self._p = max(0, self._p - max(len(b1) / len(b2), 1))
            self._replace(in_b2=True)
            del b2[key]
        else:  # IV
            if len(t1) + len(b1) == c:  # A
                if b1:
                    b1.popitem(last=False)
                    self._replace(in_b2=False)
                else:
                    self.place(t1.popitem(last=False)[0], OUT)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= c:  # B
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                    b2.popitem(last=False)
                self._replace(in_b2=False)
            t1[key] = None
            self.place(key, FIRST)
            return
        t2[key] = None
        self.place(key, SECOND)

    def _replace(self, *, in_b2: bool) -> None:
        """A slot becomes free. in_b2: for a key of B2."""
        if self._t1 and (len(self._t1) > self._p or (in_b2 and len(self._t1) == self._p)):
            leaving, ghosts = self._t1, self._b1
        else:
            leaving, ghosts = self._t2, self._b2
        key, _ = leaving.popitem(last=False)
        ghosts[key] = None
        self.place(key, OUT)
