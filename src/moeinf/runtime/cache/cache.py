"""The cache of experts: what holds an expert in its slot, what leaves for another, and what is counted. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf import _native
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import ABSENT, RESIDENT, BoolArray, SlotRegion, SlotTable
from moeinf.types import FloatArray, MoeShape


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


class ExpertCache(_native.ExpertCache):
    """Experts of all layers in the slots of one memory, and the decision which of them leave.

    An expert is pinned from the moment its layer asks for it until it has been computed, and reserved while it is kept
    for a layer that has not run yet. The decisions are native: they are made at every layer.
    """

    def __init__(
        self,
        shape: MoeShape,
        slots: SlotRegion,
        policy: KeepScores,
        slices: int = 1,
        exists: BoolArray | None = None,
        stats: CacheStats | None = None,
    ) -> None:
        """stats: where it counts, beside others.

        slices: of an expert. Where there are several, shape and policy are those of slices (slices.py), every key is a
        slice's, and exists says by key which there are.
        """
        self.shape = shape
        self.slices = slices
        self.table = SlotTable(shape, slots, exists)
        self.stats = stats or CacheStats()
        super().__init__(self.table, shape.num_layers, shape.num_experts, policy, self.stats)
        self._total = self.table.total_experts
        self._policy = policy
        self._state_rows = self.table.state.reshape(shape.num_layers, shape.num_experts)

    @property
    def stride_bytes(self) -> int:
        """Of a slot, one of the largest."""
        return self.table.sizes.class_bytes[0]

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may be here, others being another machine's. None of those is on its way."""
        held = self.table.held()
        self.release(held[~mine[held]].tolist())
        self.table.only(mine)
        self.share(self.table.total_experts < self._total)

    def known(self, first_layer: int, num_layers: int = 1) -> BoolArray:
        """Returns [num_layers, experts] whether an expert is resident or on its way, or no expert has that key."""
        known: BoolArray = self._state_rows[first_layer : first_layer + num_layers] != ABSENT
        return known

    def scores(self) -> FloatArray:
        """Returns by key the policy's scores while the present layer runs; the smallest leaves first."""
        return self._policy.keep_scores(self.layer).ravel()

    def snapshot(self) -> CacheSnapshot:
        """Returns what is there now, as a value that does not change with the cache."""
        table = self.table
        return CacheSnapshot(
            table.num_slots,
            {key: int(table.offset_of[key]) for key in table.held().tolist()},
            frozenset(np.flatnonzero(table.state == RESIDENT).tolist()),
            frozenset(table.loading()),
            frozenset(self.pinned()),
            frozenset(self.reserved()),
        )

    def check_integrity(self) -> None:
        """Asserts what always holds between two layers."""
        self.table.check_integrity()
        assert not self.num_pinned, "an expert stayed pinned"
        held = set(self.table.held().tolist())
        assert held.issuperset(self.reserved() + self.unused()), "an absent expert is held"


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
