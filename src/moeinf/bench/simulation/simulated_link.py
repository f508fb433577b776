"""A reader of which only the time exists: what a simulation has in place of a disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf.runtime.cache.loader import DEMAND
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.types import FloatArray, IntArray

_NONE = np.empty(0, np.int64)


class Clock:
    """Seconds that pass only where the simulation says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedLink:
    """moeinf.runtime.io.reader_protocol.Reader that lands one expert after the other while its clock goes on.

    Demand overtakes prefetches that have not begun; of equals, the first come is first served.

    waits_for_all: `wait_any` returns when all of the keys have landed, and not the first. Where nothing is done in
    between that takes time or asks for a read, no figure depends on it, and a wait for each is saved.
    """

    backend, notice = "simulated", ""

    def __init__(self, clock: Clock, read_s: Sequence[float], expert_bytes: Sequence[int]) -> None:
        """By key: how many seconds the read of an expert takes, and how many bytes it brings."""
        self._clock = clock
        self._read_s, self._expert_bytes = read_s, expert_bytes
        self._queue: dict[int, float] = {}  # key -> priority, in the order of submission or of becoming demand
        self._reading: int | None = None
        self._ends_s = 0.0  # when the read under way ends
        self._landed: list[int] = []
        self._bytes_read, self._busy_s = 0, 0.0
        self.waits_for_all = False

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        self._catch_up()
        self._queue.update(zip(keys.tolist(), priorities.tolist(), strict=True))
        self._begin(self._clock.now)

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        self._catch_up()
        for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
            before = self._queue.get(key)
            if before is not None and before != priority:
                if priority == DEMAND:
                    del self._queue[key]  # behind what was demand before
                self._queue[key] = priority

    def cancel(self, keys: IntArray) -> IntArray:
        self._catch_up()
        return np.array([key for key in keys.tolist() if self._queue.pop(key, None) is not None], np.int64)

    def known(self, keys: IntArray) -> IntArray:
        coming = {*self._queue, *self._landed, self._reading}
        return np.array([key for key in keys.tolist() if key in coming], np.int64)

    def wait_any(self, keys: IntArray) -> IntArray:
        wanted = set(keys.tolist())
        self._catch_up()
        while not self._has_waited(wanted):
            assert self._reading is not None, "nothing is on its way"
            self._clock.now = self._ends_s
            self._catch_up()
        landed = [key for key in self._landed if key in wanted]
        self._landed = [key for key in self._landed if key not in wanted]
        return np.array(landed, np.int64)

    def _has_waited(self, wanted: set[int]) -> bool:
        return wanted.issubset(self._landed) if self.waits_for_all else not wanted.isdisjoint(self._landed)

    def poll(self) -> ReadDone:
        self._catch_up()
        if not self._landed:
            return ReadDone(_NONE, _NONE)
        landed, self._landed = self._landed, []
        return ReadDone(np.array(landed, np.int64), _NONE)

    def bytes_read(self) -> int:
        return self._bytes_read

    def busy_seconds(self) -> float:
        return self._busy_s

    def close(self) -> bool:
        return True

    def _begin(self, at_s: float) -> None:
        """The next read begins at that time, if there is one and none is under way."""
        if self._reading is None and self._queue:
            self._reading = max(self._queue, key=self._queue.__getitem__)  # of equals the first
            del self._queue[self._reading]
            self._ends_s = at_s + self._read_s[self._reading]

    def _catch_up(self) -> None:
        """Lands what has ended by now."""
        while self._reading is not None and self._ends_s <= self._clock.now:
            self._landed.append(self._reading)
            self._bytes_read += self._expert_bytes[self._reading]
            self._busy_s += self._read_s[self._reading]
            self._reading = None
            self._begin(self._ends_s)
