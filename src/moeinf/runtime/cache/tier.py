"""A memory as a tier of experts: joins the cache of its slots with the loader that fills them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf._native import IdleWindow, ReadFailure, Visit, Visits
from moeinf.runtime.cache.cache import CacheSnapshot, ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.prefetches import Prefetches
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.slices import keys_of_slices
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import LOADING, NO_EXPERT, RESIDENT, BoolArray
from moeinf.types import IntArray, Profiler

DRAIN_S: Final = 0.5  # for reads into slots that are to go; a visit may wait for so long
FILL_PAUSE_S: Final = 0.002  # between two looks at what has landed, while slots are filled that nobody waits for


@dataclass(frozen=True, slots=True)
class Lease:
    """The slots of a tier while somebody else decides what lies in them: a device that decodes without the host."""

    slots: IntArray  # by key: number of the slot of each expert when the lease began, NO_SLOT where absent
    stats: CacheStats
    class_bytes: tuple[int, ...]  # of a slot of each class (SlotSizes)

    def count(self, activations: int, misses: Sequence[int]) -> None:
        """Counts what was used, and of that brought into the slots of each class, since the last count."""
        missed = sum(misses)
        self.stats.hits += activations - missed
        self.stats.misses += missed
        self.stats.demand_reads += missed
        self.stats.demand_bytes += sum(count * size for count, size in zip(misses, self.class_bytes, strict=True))


class ExpertTier:
    """Experts of all layers in slots of one memory, the host's or a device's. Used from one thread.

    Where the cache has experts in slices, `shape`, slots and keys are those of slices, but for what says otherwise.

    The reader works beside it: it brings experts from the disk into the host, from there (HostLink) into a device.
    `resize` may come from another thread: `lock` is held during a visit, so that it comes between two. So may `states`
    and `stats.snapshot`, which take no lock: whoever counts replaces one number after the other, and each is read
    whole. Between visits nothing is pinned.
    """

    def __init__(
        self,
        cache: ExpertCache,
        loader: Loader,
        errors: ReadErrors,
        profiler: Profiler,
        idle: IdleWindow | None = None,
        drain_s: float = DRAIN_S,
    ) -> None:
        """profiler: the one that whoever drives the visits laps too. drain_s: how long `resize` waits for reads."""
        self.shape = cache.shape
        self.stats = cache.stats
        self.prefetches = Prefetches(cache, loader)
        self.idle = idle or IdleWindow()
        self.profiler = profiler
        self.most_slots = cache.table.num_slots  # that there may be now, but for what is lent (lending.py)
        self.lock = threading.Lock()
        self._turn = threading.Lock()  # held by whoever wants to resize and waits for `lock`
        self._cache = cache
        self._table = cache.table
        self._loader = loader
        self._errors = errors
        self._visits = Visits(cache, loader, self.idle, profiler, errors.explain)
        self._offset_rows = list(cache.table.offset_of.reshape(cache.shape.num_layers, cache.shape.num_experts))
        self._drain_s = drain_s
        self._leased = False

    # ---- a layer runs

    @property
    def all_resident(self) -> bool:
        """Whether every expert is there. It stays so until slots are taken away, as nothing has to be evicted."""
        return self._table.all_resident

    def hits(self, layer: int, experts: IntArray, num_activations: int) -> IntArray:
        """Does a whole visit where `all_resident`: counts it, and returns the offsets of the experts' blocks."""
        self.stats.hits += num_activations
        return self._offset_rows[layer].take(experts)

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> Visit:
        """Begins a visit: `num_tokens` tokens need the layer's `experts`, each of them as many as `counts` says."""
        assert not self._leased, "somebody else decides what lies in the slots"
        return Visit(self._visits, layer, experts, counts, num_tokens)

    def end_request(self) -> None:
        """Holds nothing for layers to come any more; the next visit drops what is still read for them."""
        with self.lock:
            self._cache.let_go()

    # ---- slots

    @property
    def num_slots(self) -> int:
        return self._table.num_slots

    @property
    def num_bytes(self) -> int:
        """All slots together."""
        return self._table.num_bytes

    @property
    def sizes(self) -> SlotSizes:
        """Of the slots."""
        return self._table.sizes

    def slots_in(self, num_bytes: int) -> int:
        """How many slots, of all that there may be, fit into so much memory."""
        return self._table.slots_in(num_bytes)

    @property
    def num_experts(self) -> int:
        """How many whole experts the slots hold."""
        return self._table.num_slots // self._cache.slices

    @property
    def untaken_bytes(self) -> int:
        """About how much of the host's memory the slots will still take as they are filled."""
        return self._loader.untaken_bytes

    def load_all(self, progress: Callable[[int, int], None]) -> None:
        """Reads every expert, in the order of the files; there must be a slot for each. progress(bytes done, in all).

        Raises ExpertReadError. An error or an interrupt leaves a tier that goes on with what has landed.
        """
        assert self.most_slots >= self._table.total_experts, "only a tier with a slot for each expert can load them all"
        more = True
        while more:
            with self._turn:  # whoever wants to resize comes first
                pass
            with self.lock:
                try:
                    more = self._loader.load_next(progress)
                except ReadFailure as failure:
                    raise self._errors.explain(failure) from failure

    def fill(self, keys: IntArray, should_stop: Callable[[], bool]) -> None:
        """Reads experts by key, the first ones first, into slots that are free, until none is or should_stop() says so.

        From any thread, as long as nothing runs. What is on its way at the end lands, or the next visit drops it.
        """
        more, keys = True, keys_of_slices(keys, self._cache.slices)
        try:
            while more and not should_stop():
                with self._turn:  # whoever wants to resize comes first
                    pass
                with self.lock:
                    more = self._loader.fill_next(keys)
                time.sleep(FILL_PAUSE_S)
        finally:
            self.end_request()

    def resize(self, num_slots: int) -> bool:
        """Gives slots of host memory back to the machine, or takes some again that it gave back. From any thread.

        Waits for the end of a visit. False: a read goes on into a slot that is to go, and the disk does not end it.
        """
        assert num_slots >= 1
        with self._turn, self.lock:
            num_slots = min(num_slots, self.most_slots)  # of which some may have been lent a moment ago
            fewer = self.num_slots - num_slots
            if fewer > 0 and not self._loader.drains_within(self._drain_s, self._table.beyond(num_slots)):
                return False
            before = self._table.num_bytes
            self._set_slots(num_slots)
            self.stats.given_back_bytes += max(0, before - self._table.num_bytes)
            return True

    def shrink(self, num_slots: int) -> None:
        """Gives up all slots but the lowest `num_slots`, with what lies in them; between visits. May wait for reads.

        On a device, work and copies that were submitted before may still use them until the device has done them.
        """
        assert 1 <= num_slots <= self.num_slots
        self._loader.drain(self._table.beyond(num_slots))
        self._set_slots(num_slots)

    # ---- experts of other machines

    def exists(self) -> BoolArray:
        """Returns by key whether the model has such an expert."""
        exists: BoolArray = self._table.exists.copy()
        return exists

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may come here from now on, as others are computed elsewhere; between visits.

        May wait for reads of what is not to come any more.
        """
        with self._turn, self.lock:
            self._loader.drain(np.flatnonzero(~mine))
            self._cache.only(mine)

    @property
    def has_room_for_all(self) -> bool:
        """Whether there is a slot for every expert that may come here."""
        return self._table.most_held == self._table.total_experts

    # ---- slots in other hands

    def lease(self) -> Lease:
        """Lets somebody else decide what lies in the slots, until `reclaim`; between visits.

        Nothing is on its way into them any more, nor kept for a layer to come. May wait for reads.
        """
        self._cache.let_go()
        self._loader.drain(np.arange(self.shape.num_keys))
        self._leased = True
        return Lease(self._table.numbers(), self.stats, self._table.sizes.class_bytes)

    def reclaim(self, slots: IntArray) -> None:
        """Ends the lease. slots says by key what lies where now, numbered as in the lease."""
        assert self._leased
        self._cache.take_over(slots)
        self._leased = False

    # ---- looking inside

    def snapshot(self) -> CacheSnapshot:
        """Returns what the tier holds now."""
        return self._cache.snapshot()

    def states(self) -> npt.NDArray[np.uint8]:
        """Returns [layers, experts] the states of the table (table.py), as a copy. From any thread, without a wait.

        An expert in slices is RESIDENT where all of these are, and LOADING where one of them is.

        Each item is one byte, which is read whole. Items may be of moments before and after a change of others: good
        enough to look at, and to decide nothing by. Of slots that are leased it tells what lay in them before.
        """
        states: npt.NDArray[np.uint8] = self._table.state.reshape(self.shape.num_layers, -1).copy()
        if self._cache.slices > 1:
            states = _states_of_experts(states.reshape(len(states), -1, self._cache.slices))
        return states

    def check_integrity(self) -> None:
        """Asserts what always holds between visits; tests call it after every step."""
        self._cache.check_integrity()

    def _set_slots(self, num_slots: int) -> None:
        """Changes the number of slots; what lies in a slot that goes is lost, and nothing may be on its way there."""
        self._cache.release(self._table.beyond(num_slots).tolist())
        self._table.limit(num_slots)
        self._loader.end_memory_at(self._table.end_offset)


def _states_of_experts(states: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """States [layers, experts, slices] as those of experts."""
    exists = states != NO_EXPERT
    whole = ((states == RESIDENT) | ~exists).all(axis=2)
    of_experts: npt.NDArray[np.uint8] = np.where(whole, RESIDENT, LOADING * (states == LOADING).any(axis=2))
    of_experts = np.where(exists.any(axis=2), of_experts, NO_EXPERT).astype(np.uint8)
    return of_experts
