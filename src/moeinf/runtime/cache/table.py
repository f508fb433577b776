"""The table of slots: which expert lies in which, and whether its block has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf import _native
from moeinf.types import ByteArray, IntArray, MoeShape

ABSENT: Final = 0
LOADING: Final = 1
RESIDENT: Final = 2
NO_EXPERT: Final = 3  # of a key that no expert has, where layers have different numbers of them, or another machine's
NO_SLOT: Final = -1

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SlotRegion:
    """The part of an arena that holds slots: `num_slots` of them, each of an expert's stride, from offset_bytes on.

    memory: the arena, where it is the host's; None for a device's, of which only the reader knows the addresses.
    """

    memory: ByteArray | None
    offset_bytes: int
    num_slots: int


def exists_by_key(shape: MoeShape) -> BoolArray:
    """Whether there is an expert of each key, as shape.counts tells."""
    counts = np.array(shape.counts or (shape.num_experts,) * shape.num_layers)
    exists: BoolArray = (np.arange(shape.num_experts) < counts[:, None]).ravel()
    return exists


class SlotTable(_native.SlotTable):
    """Equal slots in an arena, each known by its offset in bytes; experts by key (layer * num_experts + expert).

    An expert that is LOADING or RESIDENT has a slot. The arrays are indexed by key; others read them and never write.
    """

    def __init__(
        self, shape: MoeShape, first_offset: int, stride_bytes: int, num_slots: int, exists: BoolArray | None = None
    ) -> None:
        """exists: by key, where shape.counts does not tell."""
        self.exists: BoolArray = exists_by_key(shape) if exists is None else exists
        self.state: npt.NDArray[np.uint8] = np.where(self.exists, ABSENT, NO_EXPERT).astype(np.uint8)
        self.offset_of: IntArray = np.full(shape.num_keys, NO_SLOT, np.int64)
        super().__init__(first_offset, stride_bytes, num_slots, self.state, self.offset_of)
        self._first_offset, self._stride_bytes = first_offset, stride_bytes

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may have slots here, others being as if there were none; those must have none."""
        mine = mine & self.exists
        self.state[~mine] = NO_EXPERT
        self.state[mine & (self.state == NO_EXPERT)] = ABSENT
        self.count()

    def beyond(self, num_slots: int) -> IntArray:
        """Returns the keys of the experts in other slots than the lowest `num_slots`."""
        return np.flatnonzero(self.offset_of >= self._first_offset + num_slots * self._stride_bytes)

    def held(self) -> IntArray:
        """Returns the keys of the experts that have a slot, ascending."""
        return np.flatnonzero((self.state == LOADING) | (self.state == RESIDENT))

    def numbers(self) -> IntArray:
        """Returns by key the number of the slot of each expert that has one, else NO_SLOT."""
        numbers = (self.offset_of - self._first_offset) // self._stride_bytes
        return np.where(self.offset_of == NO_SLOT, NO_SLOT, numbers)

    def check_integrity(self) -> None:
        """Asserts what always holds."""
        held = self.held()
        offsets = self.offset_of[held].tolist() + self.free_offsets()
        every = range(self._first_offset, self.end_offset, self._stride_bytes)
        assert sorted(offsets) == list(every), "a slot is lost, or holds two experts"
        assert (np.flatnonzero(self.offset_of != NO_SLOT) == held).all(), "an expert has a slot and no state"
        assert self.num_resident == np.count_nonzero(self.state == RESIDENT), "residents are miscounted"
        assert self.all_resident == (self.num_resident == self.total_experts)
