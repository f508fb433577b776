"""A copier whose copies happen late: only when somebody waits for them, asks often enough, or computes behind them."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable

import numpy as np

from moeinf.types import ByteArray, IntArray

COMPUTE_STREAM = 7


class FakeCopier:
    """moeinf.types.Copier between two arrays of host memory, whose real addresses it is given.

    A copy reads its source as late as it may, so a slot that is reused too early shows wrong bytes; compute, which the
    tests stand for, sees by `compute` what the copies have brought that it was made to wait for, and nothing else.
    """

    def __init__(self, seed: int = 0, *, pinned_bytes: int | None = None) -> None:
        """pinned_bytes: how much the system lets be pinned; None for all."""
        self._random = random.Random(seed)
        self._pinned_limit = pinned_bytes
        self._pinned: tuple[int, int] = (0, 0)  # from, to
        self._pending: deque[tuple[int, list[int], list[int], list[int]]] = deque()
        self._next_ticket = 0
        self._waited_for = -1  # the ticket that compute comes behind
        self._bytes = 0
        self.submissions: list[int] = []  # experts of each
        self.patient = False  # then `done` hurries nothing

    def register(self, memory: ByteArray, ends: IntArray, progress: Callable[[int], None] | None = None) -> int:
        """In two pieces."""
        num_bytes = int(ends[-1]) if len(ends) else 0
        num_bytes = num_bytes if self._pinned_limit is None else min(num_bytes, self._pinned_limit)
        for done in (num_bytes // 2, num_bytes):
            self._pinned = memory.ctypes.data, memory.ctypes.data + done
            if progress is not None:
                progress(done)
        return num_bytes

    def device_address(self, address: int, num_bytes: int = 1) -> int:
        if not self._pinned[0] <= address <= self._pinned[1] - num_bytes:
            raise ValueError("not registered")
        return address

    def copy(self, sources: IntArray, destinations: IntArray, num_bytes: IntArray, compute_stream: int) -> int:
        assert compute_stream == COMPUTE_STREAM and len(sources) == len(destinations) == len(num_bytes) > 0
        ticket = self._next_ticket
        self._next_ticket += 1
        self._pending.append((ticket, sources.tolist(), destinations.tolist(), num_bytes.tolist()))
        self.submissions.append(len(sources))
        return ticket

    def make_wait(self, compute_stream: int, ticket: int) -> None:
        assert compute_stream == COMPUTE_STREAM and 0 <= ticket < self._next_ticket
        self._waited_for = max(self._waited_for, ticket)

    def done(self, ticket: int) -> bool:
        if self._pending and not self.patient and self._random.random() < 0.3:
            self._carry_out(self._pending[0][0])
        return not self._pending or self._pending[0][0] > ticket

    def wait(self, ticket: int) -> None:
        assert 0 <= ticket < self._next_ticket
        self._carry_out(ticket)

    def bytes_copied(self) -> int:
        return self._bytes

    def busy_seconds(self) -> float:
        return self._bytes / 1e9

    def close(self) -> None:
        self._carry_out(self._next_ticket)
        self._pinned = (0, 0)

    def compute(self) -> None:
        """What compute was given runs now: after the copies that it waits for."""
        self._carry_out(self._waited_for)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def _carry_out(self, ticket: int) -> None:
        while self._pending and self._pending[0][0] <= ticket:
            _, sources, destinations, sizes = self._pending.popleft()
            for source, destination, num_bytes in zip(sources, destinations, sizes, strict=True):
                ctypes.memmove(destination, source, num_bytes)
                self._bytes += num_bytes


def address_of(memory: ByteArray, offsets: IntArray) -> IntArray:
    addresses: IntArray = memory.ctypes.data + np.asarray(offsets, np.int64)
    return addresses


class LateCopier(FakeCopier):
    """For the emulated device, where compute runs at once: what it waits for has to be there."""

    def make_wait(self, compute_stream: int, ticket: int) -> None:
        super().make_wait(compute_stream, ticket)
        self.wait(ticket)
