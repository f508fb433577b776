"""Which rank owns which expert: a weighted hash, so that few experts move when a rank joins or leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeinf.types import FloatArray, IntArray

_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a rank brings: room for so many experts in memory, and a disk that reads so many bytes a second."""

    num_slots: int
    bytes_per_s: float


def shares(num_experts: int, ranks: Sequence[Capacity]) -> FloatArray:
    """How many experts each rank is to own, as fractions of a whole number may be left to the hash.

    Where all memories together hold every expert, in proportion to memory: nothing is read then. Else a rank owns what
    it holds, and of the rest what its disk reads in the time that all disks need for all of it:
    n_r = slots_r + rate_r * (experts - all slots) / (all rates).
    """
    slots = np.array([min(rank.num_slots, num_experts) for rank in ranks], np.float64)
    rates = np.array([max(rank.bytes_per_s, 1.0) for rank in ranks], np.float64)
    if slots.sum() >= num_experts:
        wanted: FloatArray = num_experts * slots / slots.sum()
    else:
        wanted = slots + rates * (num_experts - slots.sum()) / rates.sum()
    return wanted


def owners(num_keys: int, weights: FloatArray) -> IntArray:
    """Returns by key the rank that owns it: rendezvous hashing, where the best of -w_r / ln(u(key, r)) wins.

    weights [ranks], not negative, one of them above 0; a rank is chosen in proportion to its weight. A rank whose
    weight falls to 0 gives its experts to the others, and none of theirs moves.
    """
    keys = np.arange(num_keys, dtype=np.uint64)
    scores = np.full((len(weights), num_keys), -1.0)
    for rank, weight in enumerate(weights.tolist()):
        if weight > 0:
            scores[rank] = -weight / np.log(_uniform(keys, rank))
    best: IntArray = scores.argmax(axis=0)
    return best


def _uniform(keys: npt.NDArray[np.uint64], rank: int) -> FloatArray:
    """A number in (0, 1) for each key and this rank, by the mixing of splitmix64."""
    mixed = keys * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64((rank + 1) * 0xD1B54A32D192ED03 & int(_MASK))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    uniform: FloatArray = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return uniform
