"""The table of slots: which expert lies in which, and whether its block has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf import _native
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.types import ByteArray, IntArray, MoeShape

ABSENT: Final = 0
LOADING: Final = 1
RESIDENT: Final = 2
NO_EXPERT: Final = 3  # of a key that no expert has, where layers have different numbers of them, or another machine's
NO_SLOT: Final = -1

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SlotRegion:
    """The part of an arena that holds slots: the lowest `num_slots` of those that there may be, from offset_bytes on.

    memory: the arena, where it is the host's; None for a device's, of which only the reader knows the addresses.
    """

    memory: ByteArray | None
    offset_bytes: int
    num_slots: int
    sizes: SlotSizes


def exists_by_key(shape: MoeShape) -> BoolArray:
    """Whether there is an expert of each key, as shape.counts tells."""
    counts = np.array(shape.counts or (shape.num_experts,) * shape.num_layers)
    exists: BoolArray = (np.arange(shape.num_experts) < counts[:, None]).ravel()
    return exists


class SlotTable(_native.SlotTable):
    """Slots in an arena, each known by its offset in bytes; experts by key (layer * num_experts + expert).

    They are of one size or of several (SlotSizes), each for the experts of some layers. An expert that is LOADING or
    RESIDENT has a slot. The arrays are indexed by key; others read them and never write.
    """

    def __init__(self, shape: MoeShape, slots: SlotRegion, exists: BoolArray | None = None) -> None:
        """exists: by key, where shape.counts does not tell."""
        self.exists: BoolArray = exists_by_key(shape) if exists is None else exists
        self.state: npt.NDArray[np.uint8] = np.where(self.exists, ABSENT, NO_EXPERT).astype(np.uint8)
        self.offset_of: IntArray = np.full(shape.num_keys, NO_SLOT, np.int64)
        self.sizes = sizes = slots.sizes
        assert 1 <= slots.num_slots <= len(sizes.order), "there is a slot for each expert at most"
        self._of_slots = sizes.order[: slots.num_slots].astype(np.uint8)
        self._class_of = np.repeat(sizes.of_layers, shape.num_experts).astype(np.uint8)
        class_bytes = list(sizes.class_bytes)
        super().__init__(slots.offset_bytes, class_bytes, self._of_slots, self._class_of, self.state, self.offset_of)
        self._begins: IntArray = slots.offset_bytes + sizes.begins[: slots.num_slots + 1]
        self.slot_bytes: IntArray = np.array(class_bytes, np.int64)[self._class_of]  # by key

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may have slots here, others being as if there were none; those must have none."""
        mine = mine & self.exists
        self.state[~mine] = NO_EXPERT
        self.state[mine & (self.state == NO_EXPERT)] = ABSENT
        self.count()

    def beyond(self, num_slots: int) -> IntArray:
        """Returns the keys of the experts in other slots than the lowest `num_slots`."""
        return np.flatnonzero(self.offset_of >= self._begins[num_slots])

    def held(self) -> IntArray:
        """Returns the keys of the experts that have a slot, ascending."""
        return np.flatnonzero((self.state == LOADING) | (self.state == RESIDENT))

    def numbers(self) -> IntArray:
        """Returns by key the number of the slot of each expert that has one, else NO_SLOT."""
        return np.where(self.offset_of == NO_SLOT, NO_SLOT, np.searchsorted(self._begins, self.offset_of))

    @property
    def num_bytes(self) -> int:
        """All slots together."""
        return self.end_offset - int(self._begins[0])

    def slots_in(self, num_bytes: int) -> int:
        """How many of the lowest slots, of all that there may be, fit into so much memory."""
        return int(np.searchsorted(self._begins - self._begins[0], num_bytes, side="right")) - 1

    def bytes_for(self, keys: IntArray | BoolArray) -> int:
        """The slots of these experts together."""
        return int(self.slot_bytes[keys].sum())

    def classes_of(self, keys: Sequence[int] | IntArray) -> IntArray:
        """The class of slot that each of these experts may have."""
        return self._class_of[np.asarray(keys, np.int64)].astype(np.int64)

    def ends(self) -> IntArray:
        """Returns where each slot ends, in bytes of the arena, in their order."""
        ends: IntArray = self._begins[1 : self.num_slots + 1]
        return ends

    @property
    def most_held(self) -> int:
        """How many of the experts that may come here find slots of theirs."""
        experts = np.bincount(self._class_of[self.state != NO_EXPERT], minlength=self.num_classes)
        return int(np.minimum(experts, self.slots_by_class()).sum())

    def first_with_slots(self, keys: IntArray) -> IntArray:
        """Returns those of these experts that free slots suffice for, the first ones of each class."""
        free = self.free_by_class()
        if len(free) == 1:
            return keys[: free[0]]
        classes, fits = self.classes_of(keys), np.zeros(len(keys), np.bool_)
        for each, count in enumerate(free):
            fits[np.flatnonzero(classes == each)[:count]] = True
        return keys[fits]

    def check_integrity(self) -> None:
        """Asserts what always holds."""
        held = self.held()
        offsets = self.offset_of[held].tolist() + self.free_offsets()
        every = self._begins[: self.num_slots].tolist()
        assert sorted(offsets) == every, "a slot is lost, or holds two experts"
        assert (self._of_slots[self.numbers()[held]] == self._class_of[held]).all(), "a slot is of another size"
        assert (np.flatnonzero(self.offset_of != NO_SLOT) == held).all(), "an expert has a slot and no state"
        assert self.num_resident == np.count_nonzero(self.state == RESIDENT), "residents are miscounted"
        assert self.all_resident == (self.num_resident == self.total_experts)
