"""What other caches would have hit of a request's decoding: its routing is kept while it runs, and replayed then."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf._native import replayed_hits
from moeinf.runtime.cache.stats import DecodeStats
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.types import IntArray, MoeShape

MOST_ACTIVATIONS: Final = 1 << 19  # of a request, replayed in some tenths of a second; of a longer one nothing is told
_AT_ONCE: Final = 4096  # routings that are kept apart


class DecodeRouting(Listener):
    """Keeps the routing of one request's decode steps, of one that runs alone.

    Of requests side by side, whose experts one cache holds for all, none can be told what it would have hit elsewhere.
    """

    def __init__(self, shape: MoeShape) -> None:
        self._num_experts = shape.num_experts
        self._running = False
        self._noted: list[tuple[int, IntArray]] = []
        self._keys: list[IntArray] = []  # of activations, put together
        self._sizes: list[IntArray] = []  # activations of each visit
        self._resident: IntArray = np.empty(0, np.int64)
        self._num_slots = self._count = 0

    def start(self, tier: ExpertTier) -> None:
        """A request begins to decode. Not where every expert is there, nor where slots differ or hold slices."""
        self.give_up()
        one_size = len(tier.sizes.class_bytes) == 1 and tier.num_experts == tier.num_slots
        if one_size and not tier.all_resident:
            self._resident, self._num_slots = np.array(sorted(tier.snapshot().resident), np.int64), tier.num_slots
            self._running = True

    def observe(self, layer: int, ids: IntArray) -> None:
        if self._running:
            self._noted.append((layer, ids.copy()))
            if len(self._noted) >= _AT_ONCE:
                self._put_together()

    def give_up(self) -> None:
        """Keeps nothing of what runs now."""
        self._running, self._count = False, 0
        self._noted, self._keys, self._sizes = [], [], []

    def tell(self, stats: DecodeStats, tier: ExpertTier) -> None:
        """The request ends: writes into its stats what others would have hit, if that can be told."""
        self._put_together()
        if self._running and self._sizes and tier.num_slots == self._num_slots:
            keys, sizes = (np.concatenate(each, dtype=np.int64) for each in (self._keys, self._sizes))
            stats.compared = len(keys)
            stats.lru_hits, stats.best_hits = replayed_hits(keys, sizes, self._resident, self._num_slots)
        self.give_up()

    def _put_together(self) -> None:
        if not self._noted:
            return
        sizes = np.array([ids.size for _, ids in self._noted])
        first_keys = np.repeat([layer * self._num_experts for layer, _ in self._noted], sizes)
        keys = first_keys + np.concatenate([ids.ravel() for _, ids in self._noted])
        self._keys.append(keys.astype(np.int32))
        self._sizes.append(sizes.astype(np.int32))
        self._noted, self._count = [], self._count + len(keys)
        if self._count > MOST_ACTIVATIONS:
            self.give_up()
