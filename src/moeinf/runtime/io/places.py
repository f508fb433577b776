"""Where experts lie in files in several pieces each, or their slices, at places that differ by layer."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.runtime.io.protocol import DiskReader
from moeinf.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """Arrays [layers, pieces]. A layer of fewer pieces than others has pieces of 0 bytes behind its last.

    Where experts are cut into slices, [layers * slices, pieces].
    """

    files: IntArray
    starts: IntArray  # of expert 0 in the file
    steps: IntArray  # from one expert to the next
    num_bytes: IntArray
    regions: IntArray  # offset in the slot of the block that the piece begins in


class PlacedReads:
    """Reads experts, or their slices, from where they lie into slots."""

    def __init__(self, reader: DiskReader, places: ExpertPlaces, num_experts: int, slices: int = 1) -> None:
        """slices: of an expert, of the layer where these are most."""
        self._reader, self._places, self._num_experts, self._slices = reader, places, num_experts, slices

    def submit(self, keys: IntArray, slots: IntArray, priorities: FloatArray) -> None:
        """slots: the offsets in the arena that `keys` come to."""
        places, experts, slices = self._places, keys // self._slices, self._slices
        layers, experts = experts // self._num_experts, experts % self._num_experts
        if slices > 1:
            layers = layers * slices + keys % slices
        self._reader.submit_pieces(
            keys,
            places.files[layers],
            places.starts[layers] + experts[:, None] * places.steps[layers],
            slots[:, None] + places.regions[layers],
            places.num_bytes[layers],
            priorities,
        )
