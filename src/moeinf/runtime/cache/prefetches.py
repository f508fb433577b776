"""Reads ahead of demand, into slots that are kept for layers which have not run yet."""

from __future__ import annotations

import numpy as np

from moeinf._native import rank_prefetches
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.table import ABSENT, LOADING, BoolArray
from moeinf.runtime.policy.priority import EPS
from moeinf.types import FloatArray, IntArray

_NO_KEYS = np.empty(0, np.int64)


class Prefetches:
    """Queues, re-orders and drops the prefetches of one tier. Keys are layer * num_experts + expert."""

    def __init__(self, cache: ExpertCache, loader: Loader) -> None:
        self._cache = cache
        self._loader = loader
        self._one_size = cache.table.num_classes == 1  # whose room costs less to tell: it is asked at every layer

    def known(self, first_layer: int, num_layers: int = 1) -> BoolArray:
        """Returns [num_layers, experts] whether there is nothing to read: as ExpertCache.known."""
        return self._cache.known(first_layer, num_layers)

    def likeliest(
        self, layer: int, likelihood: FloatArray, at_least: float, count: int
    ) -> tuple[list[int], list[float]]:
        """Returns the keys and priorities of up to `count` absent experts behind `layer`, highest priority first.

        likelihood [n, experts] is of the n layers behind it. Only priorities above at_least count.
        """
        shape = self._cache.shape
        ranked = rank_prefetches(
            likelihood,
            num_layers=shape.num_layers,
            eps=EPS,
            states=self._cache.table.state,
            absent=ABSENT,
            first_key=(layer + 1) * shape.num_experts,
            at_least=at_least,
            count=count,
        )
        return ranked if self._one_size else self._within(self._room_by_class(), *ranked)

    @property
    def room(self) -> int:
        """How many more experts may be kept for layers to come, so that demand always finds slots."""
        if self._one_size:
            return (self._cache.table.num_slots - self._cache.shape.top_k) // 2 - self._cache.num_reserved
        return sum(max(0, room) for room in self._room_by_class())

    @property
    def slots_are_full(self) -> bool:
        """Whether no slot is empty: every read takes the place of another expert."""
        return not self._cache.table.num_free

    def queued(self) -> IntArray:
        """Returns the keys of the prefetches that have not landed, ascending."""
        if not self._cache.num_reserved:
            return _NO_KEYS
        return np.array(self._cache.by_state(self._cache.reserved())[LOADING], np.int64)

    def submit(self, keys: IntArray, priorities: FloatArray) -> int:
        """Queues reads of absent experts behind all demand, and keeps their slots until their layer has run.

        Returns how many of them have found a slot; of one layer's, the first ones.
        """
        return self._loader.prefetch(keys, priorities)

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        """Gives new priorities to prefetches that are still queued."""
        self._loader.reprioritise(keys, priorities)

    def _reserved_by_class(self) -> list[int]:
        table = self._cache.table
        if self._one_size:
            return [self._cache.num_reserved]
        counts: list[int] = np.bincount(table.classes_of(self._cache.reserved()), minlength=table.num_classes).tolist()
        return counts

    def _room_by_class(self) -> list[int]:
        slots, top_k = self._cache.table.slots_by_class(), self._cache.shape.top_k
        return [(count - top_k) // 2 - kept for count, kept in zip(slots, self._reserved_by_class(), strict=True)]

    def _within(self, room: list[int], keys: list[int], priorities: list[float]) -> tuple[list[int], list[float]]:
        """Those for which there is room among the slots of their size."""
        chosen = []
        for place, which in enumerate(self._cache.table.classes_of(keys).tolist()):
            room[which] -= 1
            if room[which] >= 0:
                chosen.append(place)
        return [keys[place] for place in chosen], [priorities[place] for place in chosen]
