"""Where experts lie in files in several pieces each, or their slices, at places that differ by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf import _native
from moeinf.runtime.io.pages import PagesAhead
from moeinf.runtime.io.reader_protocol import DiskReader, Reader
from moeinf.types import FloatArray, IntArray, MoeShape


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


class ExpertSource(Protocol):
    """Says to a reader where experts lie."""

    def submit(self, keys: IntArray, slots: IntArray, priorities: FloatArray) -> None:
        """Queues reads of experts, or of their slices, by key. slots: the offsets in the arena that they come to."""
        ...

    def native(self, pages: PagesAhead | None, stride_bytes: int) -> _native.ExpertReads | None:
        """The same without Python in between, where the reader is native. See expert_reads."""
        ...


class BlockReads:
    """Reads blocks that lie one behind the other, a file a layer."""

    def __init__(self, reader: Reader, shape: MoeShape, stride_bytes: int) -> None:
        """stride_bytes: from one block to the next, which is as long."""
        self._reader, self._shape, self._stride_bytes = reader, shape, stride_bytes

    def submit(self, keys: IntArray, slots: IntArray, priorities: FloatArray) -> None:
        files, numbers = np.divmod(keys, self._shape.num_experts)
        self._reader.submit(keys, files, numbers * self._stride_bytes, slots, self._stride_bytes, priorities)

    def native(self, pages: PagesAhead | None, stride_bytes: int) -> _native.ExpertReads | None:
        layers = np.arange(self._shape.num_layers)[:, None]
        stride, none = np.full_like(layers, self._stride_bytes), np.zeros_like(layers)
        places = ExpertPlaces(layers, none, stride, stride, none)
        return _over_files(self._reader, places, self._shape.num_experts, 1, pages, stride_bytes)


class PlacedReads:
    """Reads experts, or their slices, from where they lie into slots."""

    def __init__(self, reader: DiskReader, places: ExpertPlaces, num_experts: int, slices: int = 1) -> None:
        """slices: of an expert, of the layer where these are most."""
        self._reader, self._places, self._num_experts, self._slices = reader, places, num_experts, slices

    def submit(self, keys: IntArray, slots: IntArray, priorities: FloatArray) -> None:
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

    def native(self, pages: PagesAhead | None, stride_bytes: int) -> _native.ExpertReads | None:
        return _over_files(self._reader, self._places, self._num_experts, self._slices, pages, stride_bytes)


def expert_reads(
    reader: Reader, source: ExpertSource, pages: PagesAhead | None, stride_bytes: int
) -> _native.ExpertReads:
    """What a loader reads experts by. pages: of the arena, that hear of what is about to be read into.

    stride_bytes: of a slot.
    """
    return source.native(pages, stride_bytes) or _native.PythonReads(reader, source.submit, pages, stride_bytes)


def _over_files(
    reader: Reader, places: ExpertPlaces, num_experts: int, slices: int, pages: PagesAhead | None, stride_bytes: int
) -> _native.ExpertReads | None:
    if not isinstance(reader, _native.NativeReader):
        return None
    return _native.FileReads(
        reader,
        places.files,
        places.starts,
        places.steps,
        places.num_bytes,
        places.regions,
        num_experts=num_experts,
        slices=slices,
        pages=pages,
        stride_bytes=stride_bytes,
    )
