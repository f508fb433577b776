"""Tables of which expert lies where: its state, its slot, and why it may not leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf._native import lowest
from moeinf.types import FloatArray, IntArray

ABSENT: Final = 0
LOADING: Final = 1
RESIDENT: Final = 2
NO_SLOT: Final = -1

BoolArray = npt.NDArray[np.bool_]


class SlotTable:
    """Equal slots in an arena, each known by its offset in bytes; experts by key (layer * num_experts + expert).

    An expert that is not ABSENT has a slot. Tables are indexed by key and written by the owner only through methods;
    the three sets of keys are the owner's to write. Of the few experts of one token, items cost less than arrays.
    """

    def __init__(self, total_experts: int, first_offset: int, stride_bytes: int, num_slots: int) -> None:
        self.state: npt.NDArray[np.uint8] = np.zeros(total_experts, np.uint8)
        self.offset_of: IntArray = np.full(total_experts, NO_SLOT, np.int64)
        self.pinned: set[int] = set()  # of the running visit, and not computed yet
        self.reserved: set[int] = set()  # for a layer that has not run yet
        self.unused: set[int] = set()  # prefetched and not used so far
        self.num_resident = 0
        self._state = self.state.data  # the same tables, by item
        self._offset_of = self.offset_of.data
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
        offsets = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for key, offset in zip(keys.tolist(), offsets, strict=True):
            self._state[key] = LOADING
            self._offset_of[key] = offset
        return np.array(offsets, np.int64)

    def land(self, keys: IntArray) -> None:
        """Reads have ended: the experts may be computed."""
        for key in keys.tolist():
            self._state[key] = RESIDENT
        self.num_resident += len(keys)

    def release(self, keys: Sequence[int]) -> int:
        """The slots of experts that are resident or on their way become free; how many were prefetched in vain."""
        num_unused = len(self.unused)
        for key in keys:
            self.num_resident -= self._state[key] == RESIDENT
            self._free.append(self._offset_of[key])
            self._state[key] = ABSENT
            self._offset_of[key] = NO_SLOT
        for held in (self.pinned, self.reserved, self.unused):
            held.difference_update(keys)
        return num_unused - len(self.unused)

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
        absent = np.flatnonzero(~here).tolist()
        for held in (self.pinned, self.reserved, self.unused):
            held.difference_update(absent)
        self.num_resident = int(np.count_nonzero(here))
        self._free = np.setdiff1d(self._offsets, offsets[here])[::-1].tolist()

    def beyond(self, num_slots: int) -> IntArray:
        """Experts in other slots than the lowest `num_slots`."""
        return np.flatnonzero(self.offset_of >= self._offsets[0] + num_slots * self._offsets.step)

    def shrink(self, num_slots: int) -> None:
        """Forgets all slots but the lowest `num_slots`; those must be free."""
        self._offsets = self._offsets[:num_slots]
        self._free = [offset for offset in self._free if offset < self._offsets.stop]

    def grow(self, num_slots: int) -> None:
        """Has `num_slots` from now on; the new ones are the last to be assigned."""
        start, end, stride = self._offsets.start, self._offsets.stop, self._offsets.step
        self._offsets = range(start, start + num_slots * stride, stride)
        self._free[:0] = range(end, self._offsets.stop, stride)[::-1]

    @property
    def num_slots(self) -> int:
        return len(self._offsets)

    @property
    def end_offset(self) -> int:
        """The offset behind the last slot."""
        return self._offsets.stop

    def by_state(self, keys: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Those of the keys that are absent, loading, resident, each in their order."""
        groups: tuple[list[int], list[int], list[int]] = ([], [], [])
        for key in keys:
            groups[self._state[key]].append(key)
        return groups

    def num_evictable(self, held: Collection[int]) -> int:
        """How many residents are not among the `held` keys."""
        return self.num_resident - sum(self._state[key] == RESIDENT for key in held)

    def lowest(self, scores: FloatArray, held: Collection[int], count: int) -> list[int]:
        """The `count` residents of the smallest `scores` [total_experts] that are not `held`, smallest first.

        Of equals the lowest key; fewer where there are fewer.
        """
        return lowest(scores, self.state, RESIDENT, list(held), count)

    def loading(self) -> list[int]:
        """Keys that are on their way, ascending."""
        on_the_way: list[int] = np.flatnonzero(self.state == LOADING).tolist() if self.num_loading else []
        return on_the_way

    def check_integrity(self) -> None:
        """Asserts what always holds between visits."""
        held = np.flatnonzero(self.state != ABSENT)
        offsets = self.offset_of[held].tolist() + self._free
        assert sorted(offsets) == list(self._offsets), "a slot is lost, or holds two experts"
        assert (np.flatnonzero(self.offset_of != NO_SLOT) == held).all(), "an expert has a slot and no state"
        assert self.num_resident == np.count_nonzero(self.state == RESIDENT), "residents are miscounted"
        assert not self.pinned, "an expert stayed pinned"
        assert (self.reserved | self.unused) <= set(held.tolist()), "an absent expert is held"
