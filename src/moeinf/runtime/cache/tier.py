"""A memory as a tier of experts: what is resident, on its way, pinned, and what has to leave for it."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import ReadFailure
from moeinf.errors import ExpertReadError
from moeinf.runtime.cache.loader import DEMAND, FilledSlots
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import ABSENT, LOADING, RESIDENT, BoolArray, SlotTable
from moeinf.runtime.policy.eviction import EvictionPolicy
from moeinf.types import ByteArray, ExpertLayout, FloatArray, IntArray, MoeShape, Profiler, Reader

BATCH_EXPERTS: Final = 16  # of one compute call while others wait for the slots that it frees
SETTLE_S: Final = 0.5  # for reads into slots that are to go; a visit may wait for so long
_NO_KEYS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class SlotRegion:
    """The part of an arena that holds slots: `num_slots` of layout.stride_bytes each, from offset_bytes.

    memory: the arena, where it is the host's; None for a device's, of which only the reader knows the addresses.
    """

    memory: ByteArray | None
    offset_bytes: int
    num_slots: int


class ExpertTier:
    """Experts of all layers in equal slots of one memory, the host's or a device's. Used from one thread.

    The reader works beside it: it brings experts from the disk into the host, from there (HostLink) into a device.
    One call, `resize`, may come from another thread: `lock` is held during a visit, so that it comes between two.

    A visit of a layer is `request` (demand is queued, residents are pinned), then `arrivals` to its end. Between
    visits nothing is pinned. An expert is pinned from the moment its layer asks until it has been computed, so a
    visit may need more experts than there are slots: it then goes through in waves. Keys are layer * num_experts +
    expert.

    A visit of many tokens passes nearly every expert of its layer through the slots once. For that it takes as many as
    a layer has experts, at most half of all: in simulation fewer let the disk wait, and more cost reads, as the others
    keep what the policy values most for the layers to come and for decode.
    """

    def __init__(
        self,
        shape: MoeShape,
        layout: ExpertLayout,
        slots: SlotRegion,
        reader: Reader,
        policy: EvictionPolicy,
        shards: list[Path],
        profiler: Profiler,
        lag_s: Callable[[], float] = lambda: 0.0,
        model: str = "MODEL",
    ) -> None:
        """lag_s(): for how long what has landed is still under way, where a reader says that it landed before.

        model: its name, for errors.
        """
        assert slots.num_slots >= 1
        self._shape = shape
        self._stride_bytes = layout.stride_bytes
        self._table = SlotTable(shape.total_experts, slots.offset_bytes, layout.stride_bytes, slots.num_slots)
        self.stats = CacheStats()
        self._filled = FilledSlots(self._table, reader, shape, layout, slots.memory, self.stats)
        self._offset_rows = list(self._table.offset_of.reshape(shape.num_layers, shape.num_experts))
        self._reader = reader
        self._policy = policy
        self._shards = shards
        self._model = model
        self._profiler = profiler
        self._lag_s = lag_s
        self.num_slots = self.most_slots = slots.num_slots
        self.lock = threading.Lock()
        self._turn = threading.Lock()  # held by whoever wants to resize and waits for `lock`
        self.idle_s = 0.0  # smoothed time between a visit's last demand read and the next visit: the link's idle window
        self._demand_ended_s = time.perf_counter()
        self._layer = 0
        self._streaming = False  # the visit is one of many tokens
        self._ready: list[int] = []  # resident and not computed
        self._waiting: list[int] = []  # on their way
        self._pending: list[int] = []  # without a slot so far
        self._abandoned = False  # reads may be under way that nobody needs
        self._ahead: list[int] = []  # of the next layer, to be read into the slots that demand leaves

    # ---- a visit

    @property
    def all_resident(self) -> bool:
        """Once true, until slots are taken away: nothing can be missing, so nothing is evicted."""
        return self._filled.all_resident

    def hits(self, layer: int, experts: IntArray, num_activations: int) -> IntArray:
        """A whole visit where `all_resident`: counts, and returns the offsets of the experts' blocks."""
        self.stats.hits += num_activations
        return self._offset_rows[layer].take(experts)

    def request(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        """`num_tokens` tokens need the layer's `experts`, each of them as many as `counts` says.

        Pins what is there, queues reads of the rest.
        """
        self._filled.poll()  # only prefetches can have failed; if such an expert is needed, its demand read will tell
        now = time.perf_counter()
        self.idle_s += 0.2 * (max(0.0, now - self._demand_ended_s) - self.idle_s)
        self._demand_ended_s = now
        self._layer, self._streaming, self._ahead = layer, num_tokens > 1, []
        keys = (experts + layer * self._shape.num_experts).tolist()
        self._pending, self._waiting, self._ready = self._table.by_state(keys)
        self._count(keys, counts)
        self._table.pinned.update(self._waiting, self._ready)
        if self._waiting:
            coming = np.array(self._waiting)
            self._reader.reprioritise(coming, np.full(len(coming), DEMAND))
        self._drop_stale(layer)
        if self._pending:
            self._queue_demand()

    @property
    def all_have_slots(self) -> bool:
        """Whether nothing of the visit waits for a slot that another expert of it has to leave first."""
        return not self._pending

    def arrivals(self) -> Iterator[tuple[IntArray, IntArray]]:
        """(experts, offsets of their blocks) of the visit, batch by batch: residents first, then what has landed.

        A batch lies still until the iterator moves on. Raises ExpertReadError; what had landed stays usable.
        """
        first_key = self._layer * self._shape.num_experts
        while self._ready or self._waiting or self._pending:
            if not self._ready:
                self._wait()
            while self._ready:
                batch = self._next_batch()
                yield batch - first_key, self._table.offset_of[batch]
                self._table.pinned.difference_update(batch.tolist())
                if self._pending or self._ahead:
                    self._refill()

    # ---- prefetch

    @property
    def known(self) -> BoolArray:
        """[layers, experts]: resident or on the way."""
        known: BoolArray = self._table.state != ABSENT
        return known.reshape(self._shape.num_layers, self._shape.num_experts)

    @property
    def prefetch_room(self) -> int:
        """How many more experts may be held for layers to come, so that demand always finds slots."""
        return (self.num_slots - self._shape.top_k) // 2 - len(self._table.reserved)

    def queued_prefetches(self) -> IntArray:
        """Keys of the prefetches that have not landed, ascending."""
        return np.array(self._table.by_state(sorted(self._table.reserved))[LOADING], np.int64)

    def prefetch(self, keys: IntArray, priorities: FloatArray) -> None:
        """Queues reads of absent experts behind all demand; their slots are kept until their layer has run."""
        count = self._make_room(len(keys), for_demand=False)
        if not count:
            return
        keys = keys[:count]
        self._filled.submit(keys, priorities[:count])
        self._table.reserved.update(keys.tolist())
        self._table.unused.update(keys.tolist())
        self.stats.prefetches += count
        self.stats.prefetch_bytes += count * self._stride_bytes

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        """New priorities for prefetches still queued."""
        self._reader.reprioritise(keys, priorities)

    def stream(self, keys: IntArray) -> None:
        """In a visit of many tokens: the layer behind it will need `keys`, surest first.

        What is there stays for it, up to half of the slots; what is absent is read into every slot that this visit's
        demand leaves, now and after each batch.
        """
        self._ahead, _, resident = self._table.by_state(keys.tolist())
        room = self.num_slots // 2 - len(self._table.reserved)
        self._table.reserved.update(resident[: max(0, room)])
        self._refill()

    # ---- loading

    def load_all(self, progress: Callable[[int, int], None]) -> None:
        """Reads every expert, in the order of the files; there must be a slot for each. progress(bytes done, in all).

        Raises ExpertReadError. An error or an interrupt leaves a tier that goes on with what has landed.
        """
        assert self.most_slots == self._shape.total_experts, "only a tier with a slot for each expert can load them all"
        more = True
        while more:
            with self._turn:  # whoever wants to resize comes first
                pass
            with self.lock:
                try:
                    more = self._filled.load_more(progress)
                except ReadFailure as failure:
                    raise self.explain(failure) from failure

    # ---- beside other tiers

    def keep_scores_below(self) -> FloatArray:
        """[layers * experts]: what the tier below keeps best; its smallest leaves first.

        What lies in this tier needs no copy there. Of that, the surest to stay here is missed least below.
        """
        scores = self._policy.keep_scores(self._layer).ravel()
        least = scores.min()
        below: FloatArray = np.where(self._table.state == ABSENT, scores, 2 * least - scores - 1)
        return below

    def shrink(self, num_slots: int) -> None:
        """Between visits: gives up all but the lowest `num_slots`, with what lies in them. May wait for reads.

        On a device, work and copies that were submitted before may still use them until the device has done them.
        """
        assert 1 <= num_slots <= self.num_slots
        self._filled.shrink(num_slots)
        self.num_slots = num_slots

    @property
    def untaken_bytes(self) -> int:
        """What the slots will still take of the host's memory as they are filled, about."""
        return self._filled.untaken_bytes

    def resize(self, num_slots: int) -> bool:
        """Gives slots of host memory back to the machine, or takes some again that it gave back. From any thread.

        Waits for the end of a visit. False: a read goes on into a slot that is to go, and the disk does not end it.
        """
        assert 1 <= num_slots <= self.most_slots
        with self._turn, self.lock:
            if num_slots >= self.num_slots:
                self._filled.grow(num_slots)
                self.num_slots = num_slots
            elif self._filled.settles_within(SETTLE_S, self._table.beyond(num_slots)):
                self.stats.given_back_bytes += (self.num_slots - num_slots) * self._stride_bytes
                self.shrink(num_slots)
            return self.num_slots == num_slots

    def settle(self) -> None:
        """Between visits: nothing is on its way any more, nor kept for a layer to come."""
        self._table.reserved.clear()
        self._filled.settle(np.arange(self._shape.total_experts))

    def slot_numbers(self) -> IntArray:
        """[layers * experts]: the slot of each expert that has one, else NO_SLOT."""
        return self._table.slots()

    def adopt(self, slots: IntArray) -> None:
        """Takes over what somebody else has done with the slots since `settle`, numbered as by `slot_numbers`."""
        self._filled.adopt(slots)

    def count_direct(self, activations: int, misses: int) -> None:
        """What was used, and of that brought into the slots, by somebody else."""
        self.stats.hits += activations - misses
        self.stats.misses += misses
        self.stats.demand_reads += misses
        self.stats.demand_bytes += misses * self._stride_bytes

    # ---- after an error

    def abandon_visit(self) -> None:
        """After an error or an interrupt in a visit: nothing is held any more; reads under way land as usual."""
        with self.lock:
            self._ready, self._waiting, self._pending, self._ahead = [], [], [], []
            self._table.pinned.clear()
            self._table.reserved.clear()
            self._abandoned = True

    def check_integrity(self) -> None:
        """Asserts what always holds between visits; tests call it after every step."""
        self._table.check_integrity()
        assert not (self._ready or self._waiting or self._pending), "a visit was not finished"

    def explain(self, failure: ReadFailure) -> ExpertReadError:
        """What a read that failed means to the user."""
        layer, expert = divmod(int(failure.key), self._shape.num_experts)
        fault = "damaged" if failure.errno == errno.EBADMSG else "unreadable"
        return ExpertReadError(
            f"{self._model}: expert {expert} of layer {layer} is {fault} in {self._shards[layer]}: "
            f"{failure}; check it with `moeinf verify {self._model}`, then `moeinf pull` it again"
        )

    def resident_experts(self) -> int:
        return self._table.num_resident

    # ---- inside

    def _count(self, keys: Sequence[int], counts: IntArray) -> None:
        stats, unused = self.stats, self._table.unused
        if self._streaming:
            states = self._table.state[keys]
            hits, late = int(counts @ (states == RESIDENT)), int(counts @ (states == LOADING))
            stats.misses += int(counts.sum()) - hits
        else:
            hits, late = len(self._ready), len(self._waiting)
            stats.misses += late + len(self._pending)
        stats.hits += hits
        stats.late_hits += late
        if unused:
            stats.prefetches_used += len(unused.intersection(keys))
            unused.difference_update(keys)

    def _refill(self) -> None:
        """Slots that have become free, or may, go to what waits for them: demand first."""
        if self._pending:
            self._queue_demand()
        if self._ahead and not self._pending:
            before = self.stats.prefetches
            self.prefetch(np.array(self._ahead), np.full(len(self._ahead), DEMAND))  # to be needed for certain
            del self._ahead[: self.stats.prefetches - before]

    def _queue_demand(self) -> None:
        count = self._make_room(len(self._pending), for_demand=True)
        if not count:
            return
        chosen = self._pending[:count]
        del self._pending[:count]
        self._filled.submit(np.array(chosen), np.full(count, DEMAND))
        self._table.pinned.update(chosen)
        self._waiting += chosen
        self.stats.demand_reads += count
        self.stats.demand_bytes += count * self._stride_bytes

    def _next_batch(self) -> IntArray:
        size = BATCH_EXPERTS if self._pending or self._ahead else len(self._ready)
        batch = self._ready[:size]
        del self._ready[:size]
        return np.array(batch)

    def _wait(self) -> None:
        """Blocks until an expert of this visit lands, or, with no slot to be had, until a prefetch gives one up."""
        self._profiler.lap("policy")
        wanted = np.array(self._waiting or self._table.loading())
        assert len(wanted), "demand has no slot and nothing is on its way"
        try:
            landed = self._filled.wait(wanted)
        except ReadFailure as failure:
            if self._waiting:
                raise self.explain(failure) from failure
            landed = _NO_KEYS  # a prefetch failed; its slot is free
        finally:
            self.stats.stall_s += self._profiler.lap("stall")
        if self._waiting:
            arrived = set(landed.tolist())
            self._ready = [key for key in self._waiting if key in arrived]
            self._waiting = [key for key in self._waiting if key not in arrived]
            if not self._waiting:
                self._demand_ended_s = time.perf_counter() + self._lag_s()
        elif self._pending:
            self._queue_demand()

    def _drop_stale(self, layer: int) -> None:
        """Ends the reservations of the layer that now runs, and cancels reads that nobody needs."""
        table, num_experts = self._table, self._shape.num_experts
        ended = [key for key in table.reserved if key // num_experts == layer]
        if not self._abandoned and not ended:
            return
        self._abandoned = False
        table.reserved.difference_update(ended)
        stale = [key for key in table.loading() if key not in table.pinned and key not in table.reserved]
        if stale:
            before = self.stats.prefetches_wasted
            self._filled.cancel(np.array(stale))
            self.stats.prefetch_bytes -= (self.stats.prefetches_wasted - before) * self._stride_bytes

    def _make_room(self, wanted: int, *, for_demand: bool) -> int:
        """How many of `wanted` slots are free, after evicting for them what the policy values least."""
        missing = wanted - self._table.num_free
        if missing > 0:
            missing -= self._evict(missing, reserved=False)
            if missing > 0 and for_demand and not (self._ready or self._waiting or self._table.num_free):
                self._evict(missing, reserved=True)  # else the visit could not go on
        return min(wanted, self._table.num_free)

    def _evict(self, wanted: int, *, reserved: bool) -> int:
        """Frees up to `wanted` slots of residents: of those reserved, or of those that nothing holds."""
        table, scores = self._table, self._policy.keep_scores(self._layer).ravel()
        if reserved:
            _, _, among = table.by_state(sorted(table.reserved - table.pinned))
            victims = sorted(among, key=scores.__getitem__)[:wanted]  # stable
        else:
            held = table.reserved | table.pinned
            if self._streaming:
                kept = max(self.num_slots // 2, self.num_slots - self._shape.num_experts)  # see above
                wanted = min(wanted, table.num_evictable(held) - kept)
            victims = table.lowest(scores, held, max(0, wanted))
        self._filled.release(victims)
        return len(victims)
