"""Tables of which expert lies where: its state, its slot, and why it may not leave."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf.types import IntArray

ABSENT: Final = 0
LOADING: Final = 1
RESIDENT: Final = 2
NO_SLOT: Final = -1

BoolArray = npt.NDArray[np.bool_]


class SlotTable:
    """Equal slots in an arena, each known by its offset in bytes; experts by key (layer * num_experts + expert).

    An expert that is not ABSENT has a slot. Tables are indexed by key and written by the owner only through methods,
    but for the three flags.
    """

    def __init__(self, total_experts: int, first_offset: int, stride_bytes: int, num_slots: int) -> None:
        self.state: npt.NDArray[np.uint8] = np.zeros(total_experts, np.uint8)
        self.offset_of: IntArray = np.full(total_experts, NO_SLOT, np.int64)
        self.pinned: BoolArray = np.zeros(total_experts, np.bool_)  # of the running visit, and not computed yet
        self.reserved: BoolArray = np.zeros(total_experts, np.bool_)  # for a layer that has not run yet
        self.unused: BoolArray = np.zeros(total_experts, np.bool_)  # prefetched and not used so far
        self.num_resident = 0
        self._offsets = range(first_offset, first_offset + num_slots * stride_bytes, stride_bytes)
        self._free = list(self._offsets)[::-1]  # lowest first: a tier that is filled once lies in order

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_loading(self) -> int:
        return len(self._offsets) - len(self._free) - self.num_resident

    def assign(self, keys: IntArray) -> IntArray:
        """Free slots for absent experts that are now on their way; returns their offsets. There must be enough."""
        count = len(keys)
        offsets: IntArray = np.array(self._free[: -count - 1 : -1], np.int64)
        del self._free[-count:]
        self.state[keys] = LOADING
        self.offset_of[keys] = offsets
        return offsets

    def land(self, keys: IntArray) -> None:
        """Reads have ended: the experts may be computed."""
        self.state[keys] = RESIDENT
        self.num_resident += len(keys)

    def release(self, keys: IntArray) -> int:
        """The slots of experts that are resident or on their way become free; how many were prefetched in vain."""
        wasted = int(np.count_nonzero(self.unused[keys]))
        self.num_resident -= int(np.count_nonzero(self.state[keys] == RESIDENT))
        self._free += self.offset_of[keys].tolist()
        self.state[keys] = ABSENT
        self.offset_of[keys] = NO_SLOT
        for flags in (self.pinned, self.reserved, self.unused):
            flags[keys] = False
        return wasted

    def slots(self) -> IntArray:
        """[total_experts]: number of the slot of each expert that has one, else NO_SLOT."""
        numbers = (self.offset_of - self._offsets[0]) // self._offsets.step
        return np.where(self.state == ABSENT, NO_SLOT, numbers)

    def adopt(self, slots: IntArray) -> None:
        """Takes over what another has done with the slots: `slots` as from slots(), all of them resident."""
        here = slots != NO_SLOT
        offsets = self._offsets[0] + slots * self._offsets.step
        self.state[:] = np.where(here, RESIDENT, ABSENT)
        self.offset_of[:] = np.where(here, offsets, NO_SLOT)
        for flags in (self.pinned, self.reserved, self.unused):
            flags &= here
        self.num_resident = int(np.count_nonzero(here))
        self._free = np.setdiff1d(self._offsets, offsets[here])[::-1].tolist()

    def beyond(self, num_slots: int) -> IntArray:
        """Experts in other slots than the lowest `num_slots`."""
        return np.flatnonzero(self.offset_of >= self._offsets[0] + num_slots * self._offsets.step)

    def shrink(self, num_slots: int) -> None:
        """Forgets all slots but the lowest `num_slots`; those must be free."""
        self._offsets = self._offsets[:num_slots]
        self._free = [offset for offset in self._free if offset < self._offsets.stop]

    def evictable(self, *, reserved: bool) -> BoolArray:
        """Residents that nothing holds; or those, not pinned, that are held for a layer to come."""
        among = self.reserved if reserved else ~self.reserved
        free_to_go: BoolArray = (self.state == RESIDENT) & among & ~self.pinned
        return free_to_go

    def check_integrity(self) -> None:
        """Asserts what always holds between visits."""
        held = np.flatnonzero(self.state != ABSENT)
        offsets = self.offset_of[held].tolist() + self._free
        assert sorted(offsets) == list(self._offsets), "a slot is lost, or holds two experts"
        assert (np.flatnonzero(self.offset_of != NO_SLOT) == held).all(), "an expert has a slot and no state"
        assert self.num_resident == np.count_nonzero(self.state == RESIDENT), "residents are miscounted"
        assert not self.pinned.any(), "an expert stayed pinned"
        assert not ((self.reserved | self.unused) & (self.state == ABSENT)).any(), "an absent expert is held"


def by_state(keys: IntArray, states: npt.NDArray[np.uint8]) -> tuple[list[int], list[int], list[int]]:
    """Keys that are absent, loading, resident."""
    groups: tuple[list[int], list[int], list[int]] = ([], [], [])
    for key, state in zip(keys.tolist(), states.tolist(), strict=True):
        groups[state].append(key)
    return groups
