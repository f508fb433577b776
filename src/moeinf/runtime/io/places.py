"""Where experts lie in files whose form is not the store's: each in several pieces, at places that differ by layer."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.runtime.io.protocol import DiskReader
from moeinf.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """Arrays [layers, pieces]. A layer of fewer pieces than others has pieces of 0 bytes behind its last."""

    files: IntArray
    starts: IntArray  # of expert 0 in the file
    steps: IntArray  # from one expert to the next
    num_bytes: IntArray
    regions: IntArray  # offset in the slot of the block that the piece begins in


class PlacedReads:
    """Reads experts from where they lie into slots."""

    def __init__(self, reader: DiskReader, places: ExpertPlaces, num_experts: int) -> None:
        self._reader, self._places, self._num_experts = reader, places, num_experts

    def submit(self, keys: IntArray, slots: IntArray, priorities: FloatArray) -> None:
        """slots: the offsets in the arena that the experts `keys` come to."""
        places, layers = self._places, keys // self._num_experts
        experts = keys % self._num_experts
        self._reader.submit_pieces(
            keys,
            places.files[layers],
            places.starts[layers] + experts[:, None] * places.steps[layers],
            slots[:, None] + places.regions[layers],
            places.num_bytes[layers],
            priorities,
        )
