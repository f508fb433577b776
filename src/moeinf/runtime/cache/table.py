"""The table of slots: which expert lies in which, and whether its block has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

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


class SlotTable:
    """Equal slots in an arena, each known by its offset in bytes; experts by key (layer * num_experts + expert).

    An expert that is LOADING or RESIDENT has a slot. The arrays are indexed by key; others read them and never write. A
    token has few experts: reading single items of a memoryview beats indexing an array with them.
    """

    def __init__(
        self, shape: MoeShape, first_offset: int, stride_bytes: int, num_slots: int, exists: BoolArray | None = None
    ) -> None:
        """exists: by key, where shape.counts does not tell."""
        self.state: npt.NDArray[np.uint8] = np.full(shape.num_keys, ABSENT, np.uint8)
        for layer, count in enumerate(shape.counts):
            self.state.reshape(shape.num_layers, -1)[layer, count:] = NO_EXPERT
        if exists is not None:
            self.state[~exists] = NO_EXPERT
        self.exists: BoolArray = self.state != NO_EXPERT
        self.offset_of: IntArray = np.full(shape.num_keys, NO_SLOT, np.int64)
        self.total_experts = int(np.count_nonzero(self.exists))
        self.num_resident = 0
        self.all_resident = False  # then nothing can be missing
        self._state = self.state.data  # the same tables, by item
        self._offset_of = self.offset_of.data
        self._offsets = range(first_offset, first_offset + num_slots * stride_bytes, stride_bytes)
        self._free = list(self._offsets)[::-1]  # the lowest is taken first: a tier that is filled once lies in order

    @property
    def num_slots(self) -> int:
        return len(self._offsets)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_loading(self) -> int:
        return len(self._offsets) - len(self._free) - self.num_resident

    @property
    def end_offset(self) -> int:
        """The offset behind the last slot."""
        return self._offsets.stop

    def assign(self, keys: IntArray) -> IntArray:
        """Gives free slots to absent experts, which are LOADING from now on; returns the offsets.

        There must be enough free slots.
        """
        count = len(keys)
        offsets = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for key, offset in zip(keys.tolist(), offsets, strict=True):
            self._state[key] = LOADING
            self._offset_of[key] = offset
        return np.array(offsets, np.int64)

    def land(self, keys: IntArray) -> None:
        """Notes that the blocks of these experts have come, so that they may be computed."""
        for key in keys.tolist():
            self._state[key] = RESIDENT
        self.num_resident += len(keys)
        self.all_resident = self.num_resident == self.total_experts

    def free(self, keys: Sequence[int]) -> None:
        """Takes their slots from experts that are resident or whose reads have ended without them."""
        for key in keys:
            self.num_resident -= self._state[key] == RESIDENT
            self._free.append(self._offset_of[key])
            self._state[key] = ABSENT
            self._offset_of[key] = NO_SLOT
        self.all_resident = self.num_resident == self.total_experts

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may have slots here, others being as if there were none; those must have none."""
        mine = mine & self.exists
        self.state[~mine] = NO_EXPERT
        self.state[mine & (self.state == NO_EXPERT)] = ABSENT
        self.total_experts = int(np.count_nonzero(mine))
        self.all_resident = self.num_resident == self.total_experts

    def limit(self, num_slots: int) -> None:
        """Drops all slots but the lowest `num_slots`, which must be free, or adds slots behind the last.

        New slots are the last to be assigned.
        """
        start, end, stride = self._offsets.start, self._offsets.stop, self._offsets.step
        self._offsets = range(start, start + num_slots * stride, stride)
        self._free = [offset for offset in self._free if offset < self._offsets.stop]
        self._free[:0] = range(end, self._offsets.stop, stride)[::-1]

    def beyond(self, num_slots: int) -> IntArray:
        """Returns the keys of the experts in other slots than the lowest `num_slots`."""
        return np.flatnonzero(self.offset_of >= self._offsets[0] + num_slots * self._offsets.step)

    def by_state(self, keys: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Splits the keys into those that are absent, loading and resident, each in their order.

        Those that no expert has are left out.
        """
        groups: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        for key in keys:
            groups[self._state[key]].append(key)
        return groups[:NO_EXPERT]

    def held(self) -> IntArray:
        """Returns the keys of the experts that have a slot, ascending."""
        return np.flatnonzero((self.state == LOADING) | (self.state == RESIDENT))

    def loading(self) -> list[int]:
        """Returns the keys of the experts that are on their way, ascending."""
        keys: list[int] = np.flatnonzero(self.state == LOADING).tolist() if self.num_loading else []
        return keys

    def numbers(self) -> IntArray:
        """Returns by key the number of the slot of each expert that has one, else NO_SLOT."""
        numbers = (self.offset_of - self._offsets[0]) // self._offsets.step
        return np.where(self.offset_of == NO_SLOT, NO_SLOT, numbers)

    def renumber(self, numbers: IntArray) -> None:
        """Records what somebody else has done with the slots: `numbers` as from numbers(), all of them resident."""
        here = numbers != NO_SLOT
        offsets = self._offsets[0] + numbers * self._offsets.step
        self.state[self.state != NO_EXPERT] = ABSENT
        self.state[here] = RESIDENT
        self.offset_of[:] = np.where(here, offsets, NO_SLOT)
        self.num_resident = int(np.count_nonzero(here))
        self.all_resident = self.num_resident == self.total_experts
        self._free = np.setdiff1d(self._offsets, offsets[here])[::-1].tolist()

    def check_integrity(self) -> None:
        """Asserts what always holds."""
        held = self.held()
        offsets = self.offset_of[held].tolist() + self._free
        assert sorted(offsets) == list(self._offsets), "a slot is lost, or holds two experts"
        assert (np.flatnonzero(self.offset_of != NO_SLOT) == held).all(), "an expert has a slot and no state"
        assert self.num_resident == np.count_nonzero(self.state == RESIDENT), "residents are miscounted"
        assert self.all_resident == (self.num_resident == self.total_experts)
