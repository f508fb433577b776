"""A visit as moeinf._native.Visit, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import numpy as np

from moeinf._native import IdleWindow, ReadFailure
from moeinf.errors import ExpertReadError
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import DEMAND, Loader
from moeinf.runtime.cache.slices import keys_of_slices
from moeinf.types import IntArray, Profiler

BATCH_EXPERTS: Final = 16  # of one compute call while others wait for the slots that it frees
BATCH_SLICES: Final = 4  # the same where experts are cut
SLICES_AHEAD: Final = 5  # of a single token's on their way: the disk is busy, and few slots are taken from others


class SliceOrder:
    """In which order a layer's slices are computed: each expert's one after the other, and what is all there first."""

    def __init__(self, keys: Sequence[int], num_experts: int, absent: Sequence[int]) -> None:
        """keys: of the slices of so many experts, the same number of each, an expert's in their order."""
        of_each = len(keys) // max(1, num_experts)
        experts = [keys[first : first + of_each] for first in range(0, len(keys), max(1, of_each))]
        missing = set(absent)
        experts.sort(key=lambda slices: len(missing.intersection(slices)))
        self._order = [key for slices in experts for key in slices]
        self._places = {key: place for place, key in enumerate(self._order)}
        self._here: set[int] = set()  # resident, and not handed out
        self._next = 0  # place of the first slice that was not handed out

    def place_of(self, key: int) -> int:
        return self._places[key]

    def arrive(self, keys: Iterable[int]) -> list[int]:
        """Takes slices that are resident now; returns those that may be computed, with what waited for them."""
        self._here.update(keys)
        first = self._next
        while self._next < len(self._order) and self._order[self._next] in self._here:
            self._next += 1
        ready = self._order[first : self._next]
        self._here.difference_update(ready)
        return ready

    def give_up(self) -> int | None:
        """Returns the last of the slices that are here and wait for others, and counts it as absent."""
        if not self._here:
            return None
        last = max(self._here, key=self.place_of)
        self._here.remove(last)
        return last


@dataclass(frozen=True, slots=True)
class VisitParts:
    """What a visit works with."""

    cache: ExpertCache
    loader: Loader
    idle: IdleWindow
    profiler: Profiler
    explain: Callable[[ReadFailure], ExpertReadError]


class PlainVisit:
    def __init__(self, parts: VisitParts, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        """`num_tokens` tokens need the layer's `experts`, each of them as many as `counts` says.

        Counts the demand, pins what is there, and queues reads of the rest.
        """
        self.layer, self.num_tokens = layer, num_tokens
        self._parts = parts
        self._open = True
        self._ready: list[int] = []  # resident and not computed
        self._waiting: list[int] = []  # on their way
        self._pending: list[int] = []  # without a slot so far
        self._ahead: list[int] = []  # of the next layer, to be read into the slots that demand leaves
        self._order: SliceOrder | None = None  # of experts that are cut
        self._experts: IntArray | None = None  # where all of them were there from the beginning
        try:
            self._begin(experts, counts)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PlainVisit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def all_have_slots(self) -> bool:
        """Whether nothing of the visit waits for a slot that another expert of it has to leave first."""
        return not self._pending

    @property
    def any_ready(self) -> bool:
        """Whether `arrivals` has something to yield at once."""
        return bool(self._ready)

    def arrivals(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yields (experts, offsets of their blocks), batch by batch: residents first, then what has landed.

        Slices are numbered as keys are: slice s of expert e is e * slices + s.

        A batch lies still until the iterator moves on. Raises ExpertReadError; what had landed stays usable.
        """
        cache = self._parts.cache
        first_key, offset_of = self.layer * cache.shape.num_experts, cache.table.offset_of
        if self._experts is not None and not self._ahead:
            yield self._experts, offset_of.take(self._experts + first_key)
            if self._open:
                self._ready = []
                cache.unpin(self.keys)
            return
        while self._ready or self._waiting or self._pending:
            if not self._ready:
                self._wait()
            while self._ready:
                batch = self._next_batch()
                keys = np.array(batch)
                yield keys - first_key, offset_of[keys]
                if not self._open:
                    return
                cache.unpin(batch)
                if self._pending or self._ahead:
                    self._refill()

    def read_ahead(self, keys: IntArray) -> None:
        """Tells a visit of many tokens that the next layer will need `keys`, of which the surest come first.

        What is there stays for it, up to half of the slots; what is absent is read into every slot that this visit's
        demand leaves, now and after each batch.
        """
        self._ahead, _, resident = self._parts.cache.by_state(keys.tolist())
        self._keep(resident)
        self._refill()

    def _keep(self, resident: list[int]) -> None:
        """Keeps residents of the next layer, as far as no more than half of the slots of their size is kept."""
        cache, table = self._parts.cache, self._parts.cache.table
        if resident:
            [which] = table.classes_of(resident[:1])
            kept = int((table.classes_of(cache.reserved()) == which).sum()) if cache.num_reserved else 0
            room = table.slots_by_class()[which] // 2 - kept
            cache.reserve(resident[: max(0, room)], prefetched=False)

    def close(self) -> None:
        """Ends the visit; a second call does nothing. Reads of a visit that is given up land as usual."""
        if self._open:
            self._open = False
            if self._pending or self._parts.cache.num_pinned:
                self._parts.cache.let_go()
                self._ready, self._waiting, self._pending, self._ahead = [], [], [], []

    # ---- inside

    def _begin(self, experts: IntArray, counts: IntArray) -> None:
        parts, layer, many = self._parts, self.layer, self.num_tokens > 1
        cache = parts.cache
        parts.loader.poll()  # only prefetches can have failed; if such an expert is needed, its demand read will tell
        parts.idle.visit_begins()
        keys = keys_of_slices(experts, cache.slices) + layer * cache.shape.num_experts
        if cache.slices > 1:
            keys = keys[cache.table.exists[keys]]
        self.keys: list[int] = keys.tolist()  # of what the visit needs
        self._pending, self._waiting, self._ready = cache.begin_layer(layer, self.keys, counts, many=many)
        if cache.slices > 1:
            self._order = SliceOrder(self.keys, len(experts), self._pending)
            self._pending.sort(key=self._order.place_of)
            self._waiting.sort(key=self._order.place_of)
            self._ready = self._order.arrive(self._ready)
        self.num_absent = len(self._pending)  # neither resident nor on their way
        if self._waiting:
            parts.loader.reprioritise(np.array(self._waiting), np.full(len(self._waiting), DEMAND))
        if unneeded := cache.end_reservations():
            parts.loader.drop(unneeded)
        if self._pending:
            self._queue_demand()
        elif self._ready and not self._waiting and self._order is None:
            self._experts = experts

    def _refill(self) -> None:
        """Gives slots that have become free, or may, to what waits for them: demand first."""
        if self._pending:
            self._queue_demand()
        if self._ahead and not self._pending:
            priorities = np.full(len(self._ahead), DEMAND)  # it will be needed for certain
            del self._ahead[: self._parts.loader.prefetch(np.array(self._ahead), priorities)]

    def _queue_demand(self) -> None:
        cache, pending, stuck = self._parts.cache, self._pending, not (self._ready or self._waiting)
        wanted = len(pending)
        if self._order is not None and self.num_tokens == 1:
            wanted = max(0, min(wanted, SLICES_AHEAD - len(self._waiting)))
        # with nothing to compute or to wait for, the visit can only go on at the cost of the layers to come
        chosen = cache.make_room(pending[:wanted], at_any_cost=stuck)
        if not chosen and stuck and self._order is not None and (last := self._order.give_up()) is not None:
            cache.release([last])  # of slices that wait for others
            pending.append(last)
            pending.sort(key=self._order.place_of)
            chosen = cache.make_room(pending[:1])
        if not chosen:
            return
        del pending[: len(chosen)]
        self._parts.loader.demand(chosen)
        self._waiting += chosen

    def _next_batch(self) -> list[int]:
        most = BATCH_EXPERTS if self._order is None else BATCH_SLICES
        size = most if self._pending or self._ahead else len(self._ready)
        batch = self._ready[:size]
        del self._ready[:size]
        return batch

    def _wait(self) -> None:
        """Blocks until an expert of this visit lands, or, with no slot to be had, until a prefetch gives one up."""
        parts, wanted = self._parts, self._waiting or self._parts.cache.table.loading()
        parts.profiler.lap("policy")
        assert wanted, "demand has no slot and nothing is on its way"
        arrived: set[int] = set()
        try:
            arrived.update(parts.loader.wait(wanted))
        except ReadFailure as failure:
            if self._waiting:
                raise parts.explain(failure) from failure
            # else a prefetch failed, and its slot is free
        finally:
            parts.cache.stats.stall_s += parts.profiler.lap("stall")
        if self._waiting:
            landed = [key for key in self._waiting if key in arrived]
            self._ready = landed if self._order is None else self._order.arrive(landed)
            self._waiting = [key for key in self._waiting if key not in arrived]
            if self._order is not None and self._pending:
                self._queue_demand()
            if not self._waiting:
                parts.idle.demand_ends()
        elif self._pending:
            self._queue_demand()
