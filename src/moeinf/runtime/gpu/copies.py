"""Copies of experts to the device: which are under way, and which of them compute has to wait for."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

import numpy as np

from moeinf.types import Copier, IntArray

NO_TICKET: Final = -1
BATCH_EXPERTS: Final = 16  # of one submission: compute begins with the first of many while the rest is on its way
PREFETCH_BYTES: Final = 16 << 20  # of prefetches under way: demand waits behind them for half a millisecond at most


class ComputeStream(Protocol):
    """What computes beside the copies: a device (gpu/device.py)."""

    @property
    def stream(self) -> int:
        """The stream on which compute is submitted now."""
        ...


class _Batch(NamedTuple):
    ticket: int
    demand_bytes: int
    num_prefetches: int


class Copies:
    """Submits copies, and knows of each expert the ticket of its last one."""

    def __init__(
        self,
        copier: Copier,
        expert_bytes: IntArray,
        compute: ComputeStream,
        *,
        batch_experts: int = BATCH_EXPERTS,
        prefetch_bytes: int = PREFETCH_BYTES,
    ) -> None:
        """expert_bytes: by key, what is copied of an expert."""
        self._copier = copier
        self._expert_bytes = expert_bytes
        self._compute = compute
        self._batch_experts = batch_experts
        self._num_prefetches = max(1, prefetch_bytes // int(expert_bytes.max()))  # that may be under way at once
        self._ticket_of: IntArray = np.full(len(expert_bytes), NO_TICKET, np.int64)
        self._ticket_of_one = self._ticket_of.data.__getitem__  # a token has few experts: items beat arrays here
        self._bytes_of_one = expert_bytes.data.__getitem__
        self._under_way: deque[_Batch] = deque()
        self._last_done = NO_TICKET
        self._ordered = (0, NO_TICKET)  # the stream that was last made to wait, and for which ticket
        self.last_ticket = NO_TICKET

    def submit(self, keys: IntArray, sources: IntArray, destinations: IntArray, *, demand: bool) -> None:
        """sources, destinations: addresses of the blocks. What lies at a source stays until its copy has ended."""
        self.retire()
        stream = self._compute.stream
        for at in range(0, len(keys), self._batch_experts):
            part = slice(at, at + self._batch_experts)
            some = keys[part]
            ticket = self._copier.copy(sources[part], destinations[part], self._expert_bytes.take(some), stream)
            self._ticket_of[some] = self.last_ticket = ticket
            demand_bytes = sum(map(self._bytes_of_one, some.tolist())) if demand else 0
            self._under_way.append(_Batch(ticket, demand_bytes, 0 if demand else len(some)))

    def retire(self) -> None:
        """Forgets the submissions that have ended."""
        while self._under_way and self._copier.done(self._under_way[0].ticket):
            self._last_done = self._under_way.popleft().ticket

    def wait(self) -> None:
        """Blocks until the oldest submission has ended; there must be one."""
        self._copier.wait(self._under_way[0].ticket)
        self.retire()

    @property
    def any_under_way(self) -> bool:
        return bool(self._under_way)

    def under_way(self) -> list[int]:
        """Keys of the experts that are still read by a copy."""
        coming: list[int] = np.flatnonzero(self._ticket_of > self._last_done).tolist()
        return coming

    @property
    def prefetch_room(self) -> int:
        """How many prefetches more may be submitted: few enough that demand soon comes behind them, at least one."""
        return self._num_prefetches - sum(batch.num_prefetches for batch in self._under_way)

    def bytes_copied(self) -> int:
        return self._copier.bytes_copied()

    def busy_seconds(self) -> float:
        return self._copier.busy_seconds()

    def lag_s(self) -> float:
        """How long the demand under way will take, at the rate measured so far."""
        self.retire()
        num_bytes = sum(batch.demand_bytes for batch in self._under_way)
        copied = self._copier.bytes_copied()
        return num_bytes * self._copier.busy_seconds() / copied if copied else 0.0

    def ticket(self, keys: IntArray) -> int:
        """The copier's ticket with which all of the keys' copies have ended; NO_TICKET where none was ever made."""
        return max(map(self._ticket_of_one, keys.tolist()), default=NO_TICKET)

    def order_compute(self, keys: IntArray | None = None) -> None:
        """What compute is given next comes behind the copies of `keys`; None: behind all that were submitted."""
        ticket = self.last_ticket if keys is None else self.ticket(keys)
        if ticket <= self._last_done:
            return
        stream = self._compute.stream
        if stream != self._ordered[0] or ticket > self._ordered[1]:
            self._copier.make_wait(stream, ticket)
            self._ordered = stream, ticket
