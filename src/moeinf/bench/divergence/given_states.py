"""What the experts of each layer are given while a model reads a text, kept in files until they are corrected by it."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.errors import DiskSpaceError
from moeinf.runtime.experts import ExpertKernel
from moeinf.store.files import errors_named, make_folders, publish, read_small
from moeinf.store.manifest import Manifest
from moeinf.text.quantities import size_text
from moeinf.types import Float32Array, IntArray

_RECORD: Final = "rows.json"


class GivenStates:
    """Of each layer the states in front of its experts, [rows, H] in f32, and the experts that each row went to, [rows,
    top_k] in int32: a row for each token, in the order of the text."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """With what an interrupted reading has left there, if it is whole."""
        self.folder, self._moe = folder, manifest.moe
        first = manifest.layout_of(0).tensors
        self._hidden = next(spec.shape[-1] for spec in first if spec.name == "up")
        self._rows = [0] * self._moe.num_layers
        self.pieces = 0  # of the text, that are in the files
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(read_small(self.folder / _RECORD))
            rows, pieces = list(map(int, record["rows"])), int(record["pieces"])
            enough = all(
                path.stat().st_size >= count * width
                for layer, count in enumerate(rows)
                for path, width in zip(self._paths(layer), self._widths, strict=True)
            )
            if len(rows) == len(self._rows) and enough:
                self._rows, self.pieces = rows, pieces

    def clear(self) -> None:
        self._rows, self.pieces = [0] * len(self._rows), 0

    def begin(self, tokens: int) -> None:
        """Raises DiskSpaceError where there is no room for so many of them."""
        with errors_named(self.folder):
            make_folders(self.folder)
            needed = tokens * sum(self._widths) * len(self._rows)
            free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise DiskSpaceError(
                f"what {tokens:,} tokens give to the experts takes {size_text(needed)} for a while, and {self.folder} "
                f"has {size_text(free)}; free some, or give fewer --calibrate-tokens"
            )

    @property
    def _widths(self) -> tuple[int, int]:
        return 4 * self._hidden, 4 * self._moe.top_k

    def _paths(self, layer: int) -> tuple[Path, Path]:
        return self.folder / f"{layer}.states", self.folder / f"{layer}.experts"

    def add(self, layer: int, hidden: Float32Array, experts: IntArray) -> None:
        """Of one piece of text or a part of it; hidden [tokens, H], experts [tokens, top_k]."""
        for path, width, each in zip(self._paths(layer), self._widths, (hidden, experts.astype(np.int32)), strict=True):
            with errors_named(path), path.open("r+b" if path.exists() else "wb") as file:
                file.seek(self._rows[layer] * width)
                file.write(np.ascontiguousarray(each).data)
        self._rows[layer] += len(hidden)

    def save(self, pieces: int) -> None:
        """What has been read so far is what an interrupted reading goes on with."""
        self.pieces = pieces
        with errors_named(self.folder):
            publish(self.folder / _RECORD, json.dumps({"rows": self._rows, "pieces": pieces}).encode())

    def of_layer(self, layer: int) -> tuple[Float32Array, IntArray]:
        """States [rows, H], which stay on the disk until they are looked at, and experts [rows, top_k]."""
        rows, (states, experts) = self._rows[layer], self._paths(layer)
        with errors_named(states):
            return (
                np.memmap(states, np.float32, "r", shape=(rows, self._hidden)),
                np.fromfile(experts, np.int32, rows * self._moe.top_k).reshape(rows, -1).astype(np.int64),
            )

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Noting:
    """Stands in front of a kernel, and notes what its experts are given."""

    def __init__(self, kernel: ExpertKernel, states: GivenStates) -> None:
        self._kernel, self._states = kernel, states

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        self._states.add(layer, hidden, ids)
        return self._kernel.begin(hidden, ids, weights, layer)

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        self._kernel.compute(experts, offsets)

    def finish(self, out: Float32Array) -> None:
        self._kernel.finish(out)
