"""The slots of host memory: which expert lies in which, what is on its way, what may leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moeinf._native import ReadFailure
from moeinf.errors import ExpertReadError
from moeinf.laps import Laps
from moeinf.runtime.policies import EvictionPolicy, choose_victims
from moeinf.runtime.stats import CacheStats
from moeinf.types import ExpertLayout, IntArray, MoeShape, Reader

ABSENT: Final = 0
LOADING: Final = 1
RESIDENT: Final = 2
NO_SLOT: Final = -1
DEMAND: Final = np.inf

TORCH_DTYPES: Final = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True, slots=True)
class SlotRegion:
    """The part of an arena that holds slots: `num_slots` of layout.stride_bytes each, from offset_bytes."""

    memory: npt.NDArray[np.uint8]
    offset_bytes: int
    num_slots: int


class HostTier:
    """Experts of all layers in equal slots of host memory. Used from one thread; the reader works beside it.

    A visit of a layer is `request` (demand is queued, residents are pinned), then `arrivals` to its end. Between
    visits nothing is pinned. An expert is pinned from the moment its layer asks until it has been computed, so a
    visit may need more experts than there are slots: it then goes through in waves. Keys are layer * num_experts +
    expert.
    """

    def __init__(self, shape: MoeShape, layout: ExpertLayout, slots: SlotRegion, reader: Reader,
                 policy: EvictionPolicy, shards: list[Path], laps: Laps) -> None:
        assert slots.num_slots >= 1
        self._shape = shape
        self._layout = layout
        self._slots = slots
        self._reader = reader
        self._policy = policy
        self._shards = shards
        self._laps = laps
        self.num_slots = slots.num_slots
        self.stats = CacheStats()
        self.idle_s = 0.0  # smoothed time between a visit's last demand read and the next visit: the link's idle window
        self._demand_ended_s = time.perf_counter()
        self._state = np.zeros(shape.total_experts, np.uint8)
        self._slot_of = np.full(shape.total_experts, NO_SLOT, np.int64)
        self._key_in = np.full(self.num_slots, NO_SLOT, np.int64)
        self._pinned = np.zeros(self.num_slots, np.bool_)
        self._reserved = np.zeros(self.num_slots, np.bool_)  # prefetched for a layer that has not run yet
        self._unused = np.zeros(self.num_slots, np.bool_)  # prefetched and not used so far
        self._free = list(range(self.num_slots))[::-1]
        self._views: list[tuple[Tensor, ...] | None] = [None] * self.num_slots
        self._layer = 0
        self._ready: list[int] = []
        self._waiting: list[int] = []
        self._pending: list[int] = []

    # ---- a visit

    def request(self, layer: int, experts: IntArray, counts: IntArray) -> None:
        """The running layer needs `experts`, each for `counts` tokens: pins what is there, queues reads of the rest."""
        self._land(*self._reader.poll())
        now = time.perf_counter()
        self.idle_s += 0.2 * (now - self._demand_ended_s - self.idle_s)
        self._demand_ended_s = now
        self._layer = layer
        keys = layer * self._shape.num_experts + experts
        states = self._state[keys]
        self._count(states, counts)
        here, coming = keys[states == RESIDENT], keys[states == LOADING]
        for slots in (self._slot_of[here], self._slot_of[coming]):
            self._pinned[slots] = True
            self.stats.prefetches_used += int(self._unused[slots].sum())
            self._unused[slots] = False
        if len(coming):
            self._reader.reprioritise(coming, np.full(len(coming), DEMAND))
        self._drop_stale(layer)
        self._ready = here.tolist()
        self._waiting = coming.tolist()
        self._pending = keys[states == ABSENT].tolist()
        self._queue_demand()

    def arrivals(self) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """(expert, weights) of the visit: residents first, then the others as they land.

        Weights are valid until the iterator moves on. Raises ExpertReadError; what had landed stays usable.
        """
        first_key = self._layer * self._shape.num_experts
        while self._ready or self._waiting or self._pending:
            if not self._ready:
                self._wait()
            while self._ready:
                key = self._ready.pop()
                slot = int(self._slot_of[key])
                yield key - first_key, self.weights(slot)
                self._pinned[slot] = False
                if self._pending:
                    self._queue_demand()

    def weights(self, slot: int) -> tuple[Tensor, ...]:
        """The tensors of the expert block in `slot`, as views."""
        views = self._views[slot]
        if views is None:
            start = self._slots.offset_bytes + slot * self._layout.stride_bytes
            views = self._views[slot] = tuple(
                torch.from_numpy(self._slots.memory[start + t.offset_bytes : start + t.offset_bytes + t.num_bytes])
                .view(TORCH_DTYPES[t.dtype]).view(t.shape)
                for t in self._layout.tensors
            )
        return views

    # ---- prefetch

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """[layers, experts]: resident or on the way."""
        known: npt.NDArray[np.bool_] = self._state != ABSENT
        return known.reshape(self._shape.num_layers, self._shape.num_experts)

    @property
    def prefetch_room(self) -> int:
        """How many more experts may be held for layers to come, so that demand always finds slots."""
        return (self.num_slots - self._shape.top_k) // 2 - int(self._reserved.sum())

    @property
    def has_absent(self) -> bool:
        return self.num_slots < self._shape.total_experts or bool(self._free)

    def queued_prefetches(self) -> int:
        """Prefetches that have not landed."""
        return int((self._reserved & (self._state[self._key_in] == LOADING)).sum())

    def prefetch(self, keys: IntArray, priorities: npt.NDArray[np.float64]) -> None:
        """Queues reads of absent experts behind all demand; their slots are kept until their layer has run."""
        slots = self._take_slots(len(keys), for_demand=False)
        keys, priorities = keys[: len(slots)], priorities[: len(slots)]
        if not len(keys):
            return
        self._submit(keys, slots, priorities)
        self._reserved[slots] = True
        self._unused[slots] = True
        self.stats.prefetches += len(keys)
        self.stats.prefetch_bytes += len(keys) * self._layout.stride_bytes

    def reprioritise(self, priorities: npt.NDArray[np.float64]) -> None:
        """New priorities [layers * experts] for the prefetches still queued."""
        queued = self._key_in[self._reserved]
        queued = queued[self._state[queued] == LOADING]
        if len(queued):
            self._reader.reprioritise(queued, priorities[queued])

    # ---- integrity

    def check_integrity(self) -> None:
        """Asserts what always holds between visits; tests call it after every step."""
        held = self._key_in[self._key_in != NO_SLOT]
        assert len(held) == len(set(held.tolist())), "an expert lies in two slots"
        assert len(held) + len(self._free) == self.num_slots, "a slot is lost"
        assert (self._slot_of[held] == np.flatnonzero(self._key_in != NO_SLOT)).all(), "slot tables disagree"
        assert (self._state[held] != ABSENT).all() and (self._state != ABSENT).sum() == len(held), "states disagree"
        assert not self._pinned.any(), "a slot stayed pinned"
        assert not (self._ready or self._waiting or self._pending), "a visit was not finished"
        assert not self._reserved[self._free].any(), "a free slot is reserved"

    def resident_experts(self) -> int:
        return int((self._state == RESIDENT).sum())

    def abandon_visit(self) -> None:
        """After an error or an interrupt in a visit: pins are dropped; reads under way land as usual."""
        self._ready, self._waiting, self._pending = [], [], []
        self._pinned[:] = False

    # ---- inside

    def _count(self, states: npt.NDArray[np.uint8], counts: IntArray) -> None:
        hits = int(counts[states == RESIDENT].sum())
        self.stats.hits += hits
        self.stats.misses += int(counts.sum()) - hits
        self.stats.late_hits += int(counts[states == LOADING].sum())

    def _queue_demand(self) -> None:
        slots = self._take_slots(len(self._pending), for_demand=True)
        if not len(slots):
            return
        keys = np.array(self._pending[: len(slots)])
        del self._pending[: len(slots)]
        self._submit(keys, slots, np.full(len(slots), DEMAND))
        self._pinned[slots] = True
        self._waiting += keys.tolist()
        self.stats.demand_reads += len(keys)
        self.stats.demand_bytes += len(keys) * self._layout.stride_bytes

    def _submit(self, keys: IntArray, slots: IntArray, priorities: npt.NDArray[np.float64]) -> None:
        layers, experts = np.divmod(keys, self._shape.num_experts)
        stride = self._layout.stride_bytes
        self._state[keys] = LOADING
        self._slot_of[keys] = slots
        self._key_in[slots] = keys
        self._reader.submit(keys, layers, experts * stride, self._slots.offset_bytes + slots * stride, stride,
                            priorities)

    def _wait(self) -> None:
        """Blocks until an expert of this visit lands, or, with no slot to be had, until a prefetch gives one up."""
        self._laps.lap("policy")
        wanted = self._waiting or self._loading_keys()
        assert wanted, "demand has no slot and nothing is on its way"
        try:
            landed = self._reader.wait_any(np.array(wanted))
        except ReadFailure as failure:
            self._forget(np.array([failure.key]))
            if failure.key in self._waiting:
                raise self._explain(failure) from failure
            landed = np.empty(0, np.int64)  # a prefetch whose slot was waited for: it has given the slot up
        finally:
            self.stats.stall_s += self._laps.lap("stall")
        self._land(landed, np.empty(0, np.int64))
        if self._waiting:
            arrived = set(landed.tolist())
            self._ready = [key for key in self._waiting if key in arrived]
            self._waiting = [key for key in self._waiting if key not in arrived]
            if not self._waiting:
                self._demand_ended_s = time.perf_counter()
        elif self._pending:
            self._queue_demand()

    def _loading_keys(self) -> list[int]:
        keys: list[int] = np.flatnonzero(self._state == LOADING).tolist()
        return keys

    def _land(self, done: IntArray, failed: IntArray) -> None:
        self._state[done] = RESIDENT
        if len(failed):  # only prefetches can fail unasked; if the expert is needed, its demand read will tell
            self._forget(failed)

    def _forget(self, keys: IntArray) -> None:
        """The slots of reads that failed or were cancelled become free."""
        slots = self._slot_of[keys]
        self.stats.prefetches_wasted += int(self._unused[slots].sum())
        self._state[keys] = ABSENT
        self._slot_of[keys] = NO_SLOT
        for flags in (self._pinned, self._reserved, self._unused):
            flags[slots] = False
        self._key_in[slots] = NO_SLOT
        self._free += slots.tolist()

    def _drop_stale(self, layer: int) -> None:
        """Ends the reservations of the layer that now runs, and cancels its prefetches that nobody needs."""
        slots = np.flatnonzero(self._reserved)
        slots = slots[self._key_in[slots] // self._shape.num_experts == layer]
        if not len(slots):
            return
        self._reserved[slots] = False
        keys = self._key_in[slots[~self._pinned[slots]]]
        stale = keys[self._state[keys] == LOADING]
        if len(stale):
            cancelled = self._reader.cancel(stale)
            self.stats.prefetch_bytes -= len(cancelled) * self._layout.stride_bytes
            self._forget(cancelled)

    def _take_slots(self, wanted: int, *, for_demand: bool) -> IntArray:
        """At most `wanted` empty slots: free ones, else those of the experts that the policy values least."""
        taken = [self._free.pop() for _ in range(min(wanted, len(self._free)))]
        if len(taken) < wanted:
            taken += self._evict(wanted - len(taken), ~self._reserved)
        if for_demand and len(taken) < wanted:
            taken += self._evict(wanted - len(taken), self._reserved)
        return np.array(taken, dtype=np.int64)

    def _evict(self, wanted: int, among: npt.NDArray[np.bool_]) -> list[int]:
        slots = np.flatnonzero(among & ~self._pinned & (self._key_in != NO_SLOT))
        slots = slots[self._state[self._key_in[slots]] == RESIDENT]
        if len(slots) > wanted:
            evictable = np.zeros(self._state.size, np.bool_)
            evictable[self._key_in[slots]] = True
            scores = self._policy.keep_scores(self._layer)
            victims = choose_victims(scores, evictable.reshape(scores.shape), wanted)
            slots = self._slot_of[[v.layer * self._shape.num_experts + v.expert for v in victims]]
        keys = self._key_in[slots]
        self.stats.prefetches_wasted += int(self._unused[slots].sum())
        self._state[keys] = ABSENT
        self._slot_of[keys] = NO_SLOT
        self._key_in[slots] = NO_SLOT
        self._reserved[slots] = False
        self._unused[slots] = False
        return slots.tolist()  # type: ignore[no-any-return]

    def _explain(self, failure: ReadFailure) -> ExpertReadError:
        layer, expert = divmod(int(failure.key), self._shape.num_experts)
        return ExpertReadError(f"expert {expert} of layer {layer} is unreadable in {self._shards[layer]}: {failure}; "
                               "check the store with `moeinf verify`, then `moeinf pull` it again")
