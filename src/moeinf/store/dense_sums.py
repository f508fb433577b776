"""Holds the bytes of a dense file against checksums.bin when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from moeinf._native import crc32c, crc32c_joined
from moeinf.errors import StoreError
from moeinf.store.files import errors_named, open_regular, read_fully
from moeinf.store.library import StoredModel
from moeinf.types import ByteArray, IntArray, SumRun, TensorSpec

ReadPieces = Callable[[int, int], Iterable[ByteArray]]


class DenseSums:
    """Checks one model's dense file against its checksums. Where there are none, everything passes."""

    def __init__(
        self, model: StoredModel, runs: Sequence[SumRun], *, always: bool = False, path: Path | None = None
    ) -> None:
        """always: rows are checked whenever they are looked up, not only the first time. path: of another file."""
        self._model, self._path, self._always = model, path or model.dense_path, always
        self._runs = {run.start: run for run in runs if run.file == self._path.name}

    @property
    def known(self) -> bool:
        return bool(self._runs)

    def check_header(self) -> None:
        """Raises StoreError where the part before the tensors is damaged, which says where they lie."""
        if not self.known:
            return
        head = self._runs.get(0)
        data = bytearray(head.num_bytes if head else 0)
        with errors_named(self._path):
            fd = open_regular(self._path)
            with open(fd, "rb"):
                read_fully(fd, memoryview(data), 0, self._path)
        if head is None or crc32c(data) != crc32c_joined(head.sums, head.unit_bytes, head.num_bytes):
            raise self._damaged("the header")

    def check(self, spec: TensorSpec, found: int) -> None:
        """Compares a tensor with its checksum. found: CRC-32C of all its bytes. Raises StoreError where they differ."""
        if not self.known or not spec.num_bytes:
            return
        run = self._run(spec)
        if found != crc32c_joined(run.sums, run.unit_bytes, run.num_bytes):
            raise self._damaged(f"tensor {spec.name!r}")

    def row_check(self, spec: TensorSpec, pieces: ReadPieces) -> Callable[[IntArray], None] | None:
        """Returns a function to call with row numbers before the rows are used. It raises StoreError for a damaged row.

        pieces(start, num_bytes): reads a part of the file, which may come in several.
        Rows may have sums by themselves, or a few together. None where nothing is known, or all have one sum: all of
        the tensor is then read and checked here.
        """
        if not self.known or not spec.num_bytes:
            return None
        run, row_bytes = self._run(spec), spec.num_bytes // spec.shape[0]
        if run.unit_bytes == run.num_bytes or run.unit_bytes % row_bytes:
            self.check(spec, _sum_of(pieces(spec.offset_bytes, spec.num_bytes)))
            return None
        sound, always, together = np.zeros(run.num_units, np.bool_), self._always, run.unit_bytes // row_bytes

        def check(rows: IntArray) -> None:
            units = rows // together
            unknown = np.unique(units[~sound[units]])
            if not len(unknown):
                return
            for bad in unknown.tolist():
                start = bad * run.unit_bytes
                size = min(run.unit_bytes, spec.num_bytes - start)
                if _sum_of(pieces(spec.offset_bytes + start, size)) == run.sums[bad]:
                    continue
                which = f"row {bad}" if together == 1 else f"one of the {together} rows from {bad * together}"
                raise self._damaged(f"{which} of tensor {spec.name!r}")
            sound[unknown] = not always

        return check

    def _run(self, spec: TensorSpec) -> SumRun:
        run = self._runs.get(spec.offset_bytes)
        if run is None or run.num_bytes != spec.num_bytes:
            raise self._damaged(f"tensor {spec.name!r}")
        return run

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"{self._model.name}: {what} in {self._path} does not match its checksum; {self._model.remedy}"
        )


def _sum_of(pieces: Iterable[ByteArray]) -> int:
    """CRC-32C of pieces that follow each other."""
    found = 0
    for piece in pieces:
        found = crc32c(piece, found)
    return found
