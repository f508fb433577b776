"""Slots of several sizes, where the experts of one layer are larger than another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from moeinf.types import IntArray, MoeShape

WASTE: Final = 10  # a tenth of its slot, at most, is what an expert leaves empty


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """The sizes of slots, in classes, and the order in which slots of all classes lie behind one another.

    The experts of a layer have slots of the smallest size that holds them. Of however many slots, the lowest ones, each
    class has its share, so that every layer has the same share of its experts resident: memory can be planned, and
    given back, by their number alone. But each class has what one layer of a token needs, so these come first.
    """

    layer_bytes: tuple[int, ...]  # of an expert of each layer
    layer_experts: tuple[int, ...]  # how many experts each layer has
    top_k: int
    class_bytes: tuple[int, ...]  # of a slot of each class, the largest first

    @property
    def of_layers(self) -> IntArray:
        """The class of each layer's slots."""
        fits = np.array(self.layer_bytes)[:, None] <= np.array(self.class_bytes)
        classes: IntArray = fits.sum(axis=1) - 1
        return classes

    def by_key(self, num_experts: int) -> IntArray:
        """Of an expert, in bytes; a layer has keys for so many."""
        num_bytes: IntArray = np.repeat(self.layer_bytes, num_experts)
        return num_bytes

    @property
    def order(self) -> IntArray:
        """The class of each slot that there may be, one for each expert."""
        return _order(self)

    @property
    def begins(self) -> IntArray:
        """Where each slot begins, in bytes behind the first, and at last where they end."""
        return _begins(self)

    @property
    def least_slots(self) -> int:
        """How many of the lowest slots it takes until each class has what one layer of a token needs."""
        return int(np.minimum(self._experts(), self.top_k).sum())

    @property
    def mean_bytes(self) -> int:
        """Of the slots of all experts."""
        return int(self.begins[-1]) // len(self.order)

    def slots_in(self, num_bytes: int) -> int:
        """How many of the lowest slots fit into so much memory."""
        return max(0, int(np.searchsorted(self.begins, num_bytes, side="right")) - 1)

    def num_bytes(self, num_slots: int) -> int:
        """Of so many slots, the lowest ones."""
        return int(self.begins[num_slots])

    def wasted(self) -> float:
        """The largest share of a slot that an expert leaves empty."""
        slots = np.array(self.class_bytes)[self.of_layers]
        return float((1 - np.array(self.layer_bytes) / slots).max())

    def equal(self) -> SlotSizes:
        """The same with the largest size alone."""
        return replace(self, class_bytes=self.class_bytes[:1])

    def only(self, counts: Sequence[int]) -> SlotSizes:
        """The same where there are only so many experts of each layer."""
        return replace(self, layer_experts=tuple(counts))

    def fewer(self) -> SlotSizes:
        """The same without the size whose experts cost least in slots of the next larger one."""
        larger = -np.diff(self.class_bytes) * self._experts()[1:]
        gone = int(np.argmin(larger)) + 1
        return replace(self, class_bytes=self.class_bytes[:gone] + self.class_bytes[gone + 1 :])

    def worth_in(self, num_bytes: int) -> SlotSizes:
        """The sizes for a cache in so much memory: all of them, unless it is so small that they would cost hits.

        What each class keeps for one layer of a token may be more than its share, which others then lack. So sizes are
        given up until every layer has as large a share of its experts resident as in slots of one size, but for the
        slot that rounding takes.
        """
        share = min(len(self.order), num_bytes // self.class_bytes[0]) / len(self.order)
        sizes = self
        while len(sizes.class_bytes) > 1:
            slots = sizes.slots_in(num_bytes)
            found = np.bincount(sizes.order[:slots], minlength=len(sizes.class_bytes))
            if slots >= sizes.least_slots and ((found + 1) / sizes._experts() > share).all():
                return sizes
            sizes = sizes.fewer()
        return self.equal()

    def _experts(self) -> IntArray:
        """How many experts have slots of each class."""
        return np.bincount(self.of_layers, self.layer_experts, len(self.class_bytes)).astype(np.int64)


def slot_sizes(layer_bytes: Sequence[int], shape: MoeShape) -> SlotSizes:
    """The fewest sizes with which no expert leaves more than a tenth of its slot empty. layer_bytes: of an expert."""
    chosen: list[int] = []
    for num_bytes in sorted(set(layer_bytes), reverse=True):
        if not chosen or WASTE * num_bytes < (WASTE - 1) * chosen[-1]:
            chosen.append(num_bytes)
    experts = tuple(shape.experts_of(layer) for layer in range(shape.num_layers))
    return SlotSizes(tuple(layer_bytes), experts, shape.top_k, tuple(chosen))


def equal_slots(slot_bytes: int, shape: MoeShape) -> SlotSizes:
    """Slots of one size."""
    return slot_sizes([slot_bytes] * shape.num_layers, shape)


@lru_cache(maxsize=8)
def _order(sizes: SlotSizes) -> IntArray:
    experts = sizes._experts()
    classes = np.repeat(np.arange(len(experts)), experts)
    numbers = np.concatenate([np.arange(count) for count in experts])
    due = np.where(numbers < sizes.top_k, -1.0, numbers / experts[classes])
    order: IntArray = classes[np.argsort(due, kind="stable")]
    order.setflags(write=False)
    return order


@lru_cache(maxsize=8)
def _begins(sizes: SlotSizes) -> IntArray:
    ends = np.cumsum(np.array(sizes.class_bytes, np.int64)[_order(sizes)])
    begins = np.concatenate([np.zeros(1, np.int64), ends])
    begins.setflags(write=False)
    return begins
