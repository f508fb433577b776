"""Compares what a checkpoint has under the name of a copy, such as a tied head, with what it should be a copy of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.store.files import errors_named, open_regular, read_fully
from moeinf.store.format import STORE_DTYPES, TensorEntry
from moeinf.store.numbers import floats, rounded
from moeinf.types import DTYPE_BYTES, DType, TensorPlan

_PIECE = 1 << 20  # elements that are compared at once


class Copies:
    """Of the copies that a plan knows those that a checkpoint has, each with its original."""

    def __init__(self, plan: TensorPlan, tensors: Tensors) -> None:
        self._plan, self._tensors = plan, tensors
        self.stored = {name: source for name, source in plan.copies.items() if name in tensors}
        self._comparable = {name: source for name, source in self.stored.items() if _comparable(tensors, name, source)}

    @property
    def shards(self) -> list[str]:
        """The files that have to be read to compare them."""
        pairs = self._comparable.items()
        return sorted({self._tensors.shard_of(name) for pair in pairs for name in pair})

    def own(self, paths: Mapping[str, Path]) -> frozenset[str]:
        """Those that differ from their originals. paths: of `shards`.

        A tensor of another type is the same where it says nothing that the original does not say: the same numbers, or
        these rounded to the type. One that is coded, and one of another shape, are taken for different.
        """
        same = {
            copy
            for copy, source in self._comparable.items()
            if _same(
                *(_File(paths[self._tensors.shard_of(name)], self._tensors.entry(name)) for name in (copy, source))
            )
        }
        return frozenset(self.stored.keys() - same)

    def lines(self, own: frozenset[str]) -> list[str]:
        """What to tell the user of those that are kept, though config.json ties them."""
        if self._plan.tied_head is None:
            return []
        return [
            f"{name} differs from {self.stored[name]}, which it is by config.json (tie_word_embeddings): kept and used"
            for name in sorted(own)
            if not self._plan.is_ahead(name)
        ]


def _comparable(tensors: Tensors, *names: str) -> bool:
    entries = [place[1] for place in map(tensors.found, names) if place is not None]
    readable = len(entries) == len(names) and all(each.dtype in STORE_DTYPES for each in entries)
    return readable and len({each.shape for each in entries}) == 1


def _same(copy: _File, original: _File) -> bool:
    narrower = DTYPE_BYTES[copy.dtype] < DTYPE_BYTES[original.dtype]
    with copy, original:
        for start in range(0, copy.count, _PIECE):
            a, b = copy.read(start), original.read(start)
            if copy.dtype == original.dtype and a == b:
                continue
            found, wanted = floats(a, copy.dtype), floats(b, original.dtype)
            equal = (found == wanted) | (narrower & (found == rounded(wanted, copy.dtype)))
            if not equal.all():
                return False
    return True


class _File:
    """A tensor in its shard."""

    def __init__(self, path: Path, entry: TensorEntry) -> None:
        self.dtype: DType = STORE_DTYPES[entry.dtype]
        self.count = entry.num_bytes // DTYPE_BYTES[self.dtype]
        self._path, self._start, self._fd = path, entry.offset_bytes, -1

    def read(self, start: int) -> memoryview:
        """Elements from `start` on, as many as are compared at once."""
        width = DTYPE_BYTES[self.dtype]
        data = memoryview(bytearray(min(_PIECE, self.count - start) * width))
        with errors_named(self._path, CheckpointError):
            read_fully(self._fd, data, self._start + start * width, self._path)
        return data

    def __enter__(self) -> _File:
        with errors_named(self._path, CheckpointError):
            self._fd = open_regular(self._path)
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)
