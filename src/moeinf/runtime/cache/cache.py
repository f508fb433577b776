"""The cache of experts: what holds an expert in its slot, what leaves for another, and what is counted. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf._native import lowest
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import ABSENT, RESIDENT, BoolArray, SlotRegion, SlotTable
from moeinf.types import FloatArray, IntArray, MoeShape


class KeepScores(Protocol):
    """What eviction asks: a policy (runtime/policy/eviction.py), or the cache of the tier above."""

    def keep_scores(self, layer: int) -> FloatArray:
        """Scores [layers, experts] while `layer` runs; the smallest leaves first."""
        ...


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """What a cache holds at one moment, by key (layer * num_experts + expert)."""

    num_slots: int
    offsets: dict[int, int]  # of every expert that has a slot
    resident: frozenset[int]
    loading: frozenset[int]
    pinned: frozenset[int]
    reserved: frozenset[int]


class ExpertCache:
    """Experts of all layers in the slots of one memory, and the decision which of them leave.

    An expert is pinned from the moment its layer asks for it until it has been computed, and reserved while it is kept
    for a layer that has not run yet. A pass of many tokens takes nearly every expert of its layer through the slots
    once. For that it may use as many slots as a layer has experts, at most half of all: in simulation fewer let the
    disk wait, and more cost reads, as the others keep what the policy values most for the layers to come and for
    decode.
    """

    def __init__(
        self,
        shape: MoeShape,
        stride_bytes: int,
        slots: SlotRegion,
        policy: KeepScores,
        slices: int = 1,
        exists: BoolArray | None = None,
        stats: CacheStats | None = None,
    ) -> None:
        """stride_bytes: from one slot to the next. stats: where it counts, beside others.

        slices: of an expert. Where there are several, shape and policy are those of slices (slices.py), every key is a
        slice's, and exists says by key which there are.
        """
        assert slots.num_slots >= 1
        self.shape = shape
        self.slices = slices
        self.stride_bytes = stride_bytes
        self.table = SlotTable(shape, slots.offset_bytes, stride_bytes, slots.num_slots, exists)
        self._total = self.table.total_experts
        self.stats = stats or CacheStats()
        self.pinned: set[int] = set()  # for others to read
        self.reserved: set[int] = set()  # for others to read
        self._unused: set[int] = set()  # prefetched, and not used so far
        self._policy = policy
        self._state_rows = self.table.state.reshape(shape.num_layers, shape.num_experts)
        self._layer = 0  # that runs
        self._ran, self._before = shape.num_layers - 1, 0  # the last one that has begun, and the one before it
        self._many = False  # it runs with many tokens
        self._shared = False  # other machines have some of the experts
        self._strays = False  # reads may be under way that nobody needs

    # ---- a layer runs

    def begin_layer(self, layer: int, keys: Sequence[int], counts: IntArray, *, many: bool) -> tuple[list[int], ...]:
        """Says that `layer` needs the experts `keys`, each for as many activations as `counts` says; counts hits.

        An expert in slices has a count for all of them, and is a hit where all are resident.

        Returns those that are absent, loading and resident. The last two are pinned. many: tokens, at once.
        """
        self._before, self._ran = self._ran, layer
        self._layer, self._many = layer, many
        groups = absent, loading, resident = self.table.by_state(keys)
        stats = self.stats
        if many or len(keys) > len(counts):
            states = self.table.state[keys].reshape(len(counts), len(keys) // max(1, len(counts)))
            whole, coming = (states == RESIDENT).all(axis=1), (states != ABSENT).all(axis=1)
            hits = int(counts @ whole)
            late = int(counts @ coming) - hits
            stats.misses += int(counts.sum()) - hits
        else:
            hits, late = len(resident), len(loading)
            stats.misses += late + len(absent)
        stats.hits += hits
        stats.late_hits += late
        if self._unused:
            stats.prefetches_used += len(self._unused.intersection(keys))
            self._unused.difference_update(keys)
        self.pinned.update(loading, resident)
        return groups

    def end_reservations(self) -> list[int]:
        """Keeps nothing for the running layer any longer; returns the experts on their way that nobody needs now.

        Of a model that several machines share, a layer that has none of this one's experts does not run here: nothing
        is kept for those either that lie between the running layer and the one before.
        """
        first = self._before + 1 if self._shared else self._layer
        num_layers, num_experts = self.shape.num_layers, self.shape.num_experts
        passed = (self._layer - first) % num_layers
        ended = [key for key in self.reserved if (key // num_experts - first) % num_layers <= passed]
        if not self._strays and not ended:
            return []
        self._strays = False
        self.reserved.difference_update(ended)
        return [key for key in self.table.loading() if key not in self.pinned and key not in self.reserved]

    def pin(self, keys: Iterable[int]) -> None:
        """Keeps these experts until they are unpinned."""
        self.pinned.update(keys)

    def unpin(self, keys: Iterable[int]) -> None:
        self.pinned.difference_update(keys)

    def reserve(self, keys: Iterable[int], *, prefetched: bool) -> None:
        """Keeps these experts until their layer has run. prefetched: they are being read for that alone."""
        self.reserved.update(keys)
        if prefetched:
            self._unused.update(keys)

    def let_go(self) -> None:
        """Gives up all pins and reservations. The next `end_reservations` tells which reads go on for nobody."""
        self.pinned.clear()
        self.reserved.clear()
        self._strays = True

    # ---- room

    def make_room(self, wanted: int, *, also_held: Collection[int] = (), at_any_cost: bool = False) -> int:
        """Evicts what the policy values least until `wanted` slots are free; returns how many of them are.

        Neither what is pinned or reserved leaves, nor what is `also_held`. at_any_cost: where that leaves not a single
        slot free, reserved experts leave too.
        """
        table = self.table
        missing = wanted - table.num_free
        if missing > 0:
            missing -= self._evict(missing, also_held)
            if missing > 0 and at_any_cost and not table.num_free:
                self._evict_reserved(missing)
        return min(wanted, table.num_free)

    def release(self, keys: Sequence[int]) -> int:
        """Takes their slots from these experts; returns how many of them were prefetched in vain."""
        num_unused = len(self._unused)
        self.table.free(keys)
        self.pinned.difference_update(keys)
        self.reserved.difference_update(keys)
        self._unused.difference_update(keys)
        wasted = num_unused - len(self._unused)
        self.stats.prefetches_wasted += wasted
        return wasted

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may be here, others being another machine's. None of those is on its way."""
        held = self.table.held()
        self.release(held[~mine[held]].tolist())
        self.table.only(mine)
        self._shared = self.table.total_experts < self._total

    def take_over(self, numbers: IntArray) -> None:
        """Goes on with what somebody else has brought into the slots: see SlotTable.renumber."""
        self.table.renumber(numbers)
        absent = np.flatnonzero(self.table.state == ABSENT).tolist()
        for held in (self.pinned, self.reserved, self._unused):
            held.difference_update(absent)

    # ---- what is there

    def known(self, first_layer: int, num_layers: int = 1) -> BoolArray:
        """Returns [num_layers, experts] whether an expert is resident or on its way, or no expert has that key."""
        known: BoolArray = self._state_rows[first_layer : first_layer + num_layers] != ABSENT
        return known

    def scores(self) -> FloatArray:
        """Returns by key the policy's scores while the present layer runs; the smallest leaves first."""
        return self._policy.keep_scores(self._layer).ravel()

    def snapshot(self) -> CacheSnapshot:
        """Returns what is there now, as a value that does not change with the cache."""
        table = self.table
        return CacheSnapshot(
            table.num_slots,
            {key: int(table.offset_of[key]) for key in table.held().tolist()},
            frozenset(np.flatnonzero(table.state == RESIDENT).tolist()),
            frozenset(table.loading()),
            frozenset(self.pinned),
            frozenset(self.reserved),
        )

    def check_integrity(self) -> None:
        """Asserts what always holds between two layers."""
        self.table.check_integrity()
        assert not self.pinned, "an expert stayed pinned"
        held = set(self.table.held().tolist())
        assert (self.reserved | self._unused) <= held, "an absent expert is held"

    # ---- inside

    def _evict(self, wanted: int, also_held: Collection[int]) -> int:
        """Frees up to `wanted` slots of residents that nothing holds; returns how many."""
        table, held = self.table, self.reserved.union(self.pinned, also_held)
        if self._many:
            kept = max(table.num_slots // 2, table.num_slots - self.shape.num_experts)  # see above
            state = table.state
            evictable = table.num_resident - sum(state[key] == RESIDENT for key in held)
            wanted = min(wanted, int(evictable) - kept)
        if wanted <= 0:
            return 0
        scores = self._policy.keep_scores(self._layer).ravel()
        victims = lowest(scores, table.state, RESIDENT, list(held), wanted)
        self.release(victims)
        return len(victims)

    def _evict_reserved(self, wanted: int) -> None:
        scores = self.scores()
        _, _, among = self.table.by_state(sorted(self.reserved - self.pinned))
        self.release(sorted(among, key=scores.__getitem__)[:wanted])  # of equals the lowest key: sorting is stable


class ScoresBelow:
    """Scores for the tier below a cache, which keeps best what that cache lacks.

    An expert that the cache holds needs no copy below. Of those, the ones that are surest to stay above leave first.
    """

    def __init__(self, above: ExpertCache) -> None:
        self._above = above

    def keep_scores(self, layer: int) -> FloatArray:
        scores = self._above.scores()
        least = scores.min()
        below: FloatArray = np.where(self._above.table.state == ABSENT, scores, 2 * least - scores - 1)
        return below
