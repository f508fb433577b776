"""The cache of experts as its description reads: sets of keys and a sort, where the fast one has tables and a heap."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from moeinf.runtime.cache.stats import CacheStats
from moeinf.types import FloatArray, MoeShape


class PlainCache:
    """See moeinf._native.SlotTable and ExpertCache, whose calls it has. Slots are numbered from 0; whole experts."""

    def __init__(
        self,
        shape: MoeShape,
        num_slots: int,
        scores: Callable[[int], FloatArray],
        class_of_slots: Sequence[int],
        class_of_layers: Sequence[int],
    ) -> None:
        """scores(layer): by key, while that layer runs. The experts of a layer have slots of its class alone."""
        self.class_of_slots, self.class_of_layers = class_of_slots[:num_slots], class_of_layers
        self.shape, self.num_slots, self.scores = shape, num_slots, scores
        self.slot_of: dict[int, int] = {}
        self.free = list(range(num_slots))[::-1]
        self.resident: set[int] = set()
        self.pinned: set[int] = set()
        self.reserved: set[int] = set()
        self.unused: set[int] = set()
        self.stats = CacheStats()
        self.layer, self.many, self.shared, self.strays = 0, False, False, False
        self.ran, self.before = shape.num_layers - 1, 0  # the last layer that has begun, and the one before it

    @property
    def loading(self) -> list[int]:
        return sorted(self.slot_of.keys() - self.resident)

    def class_of(self, key: int) -> int:
        return self.class_of_layers[key // self.shape.num_experts]

    def free_of(self, size_class: int) -> list[int]:
        return [slot for slot in self.free if self.class_of_slots[slot] == size_class]

    def with_slots(self, keys: Sequence[int]) -> list[int]:
        """Those of these experts that free slots suffice for, the first ones of each class."""
        left = [len(self.free_of(each)) for each in range(max(self.class_of_layers) + 1)]
        chosen = []
        for key in keys:
            left[self.class_of(key)] -= 1
            chosen += [key] * (left[self.class_of(key)] >= 0)
        return chosen

    def assign(self, keys: Sequence[int]) -> list[int]:
        for key in keys:
            self.slot_of[key] = self.free_of(self.class_of(key))[-1]
            self.free.remove(self.slot_of[key])
        return [self.slot_of[key] for key in keys]

    def land(self, keys: Sequence[int]) -> None:
        self.resident |= set(keys)

    def by_state(self, keys: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        num_experts, counts = self.shape.num_experts, self.shape.counts
        exists = [key for key in keys if key % num_experts < counts[key // num_experts]]
        return (
            [key for key in exists if key not in self.slot_of],
            [key for key in exists if key in self.slot_of and key not in self.resident],
            [key for key in exists if key in self.resident],
        )

    def begin_layer(
        self, layer: int, keys: Sequence[int], counts: Sequence[int], many: bool
    ) -> tuple[list[int], list[int], list[int]]:
        self.before, self.ran, self.layer, self.many = self.ran, layer, layer, many
        absent, loading, resident = self.by_state(keys)
        of_each = dict(zip(keys, counts, strict=True))
        self.stats.hits += sum(of_each[key] for key in resident)
        self.stats.misses += sum(of_each[key] for key in keys if key not in resident)
        self.stats.late_hits += sum(of_each[key] for key in loading)
        self.stats.prefetches_used += len(self.unused & set(keys))
        self.unused -= set(keys)
        self.strays |= bool(self.pinned)  # of a visit that was not closed
        self.pinned = {*loading, *resident}
        return absent, loading, resident

    def end_reservations(self) -> list[int]:
        first, num_layers = self.before + 1 if self.shared else self.layer, self.shape.num_layers
        ended_layers = {(first + step) % num_layers for step in range((self.layer - first) % num_layers + 1)}
        ended = {key for key in self.reserved if key // self.shape.num_experts in ended_layers}
        if not ended and not self.strays:
            return []
        self.reserved -= ended
        self.strays = False
        return [key for key in self.loading if key not in self.pinned | self.reserved]

    def reserve(self, keys: Collection[int], prefetched: bool) -> None:
        self.reserved |= set(keys)
        self.unused |= set(keys) if prefetched else set()

    def let_go(self) -> None:
        self.pinned, self.reserved, self.strays = set(), set(), True

    def make_room(self, keys: Sequence[int], also_held: Collection[int], at_any_cost: bool) -> list[int]:
        for each in sorted({self.class_of(key) for key in keys}):
            wanted = sum(self.class_of(key) == each for key in keys)
            others = {key for key in self.resident if self.class_of(key) != each}
            held = self.pinned | self.reserved | set(also_held) | others
            missing = wanted - len(self.free_of(each))
            if self.many:
                num_slots = list(self.class_of_slots).count(each)
                kept = max(num_slots // 2, num_slots - self.shape.num_experts)
                self._evict(min(missing, len(self.resident - held) - kept), held)
            else:
                self._evict(missing, held)
            if at_any_cost and not self.free_of(each):
                self._evict(wanted, self.pinned | (self.resident - self.reserved) | others)
        return self.with_slots(keys)

    def release(self, keys: Sequence[int]) -> int:
        wasted = len(self.unused & set(keys))
        for key in keys:
            self.free.append(self.slot_of.pop(key))
        for held in (self.resident, self.pinned, self.reserved, self.unused):
            held -= set(keys)
        self.stats.prefetches_wasted += wasted
        return wasted

    def _evict(self, count: int, held: Collection[int]) -> None:
        scores = self.scores(self.layer)
        among = sorted(self.resident - set(held), key=lambda key: (scores[key], key))
        self.release(among[: max(0, count)])

    def states(self) -> np.ndarray:
        """By key, as in moeinf.runtime.cache.table."""
        states = np.full(self.shape.num_keys, 3, np.uint8)
        for layer, count in enumerate(self.shape.counts):
            states[layer * self.shape.num_experts :][:count] = 0
        states[list(self.slot_of)] = 1
        states[list(self.resident)] = 2
        return states
