"""What the experts of each layer are given while a model reads a text, kept in files until they are corrected by it."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.errors import MALFORMED, DiskSpaceError
from moeinf.runtime.experts import ExpertKernel
from moeinf.store.files import errors_named, make_folders, publish, read_small
from moeinf.store.manifest import Manifest
from moeinf.store.numbers import bf16_bits, floats
from moeinf.text.quantities import size_text
from moeinf.types import DType, Float32Array, IntArray

_RECORD: Final = "rows.json"
_KEPT: Final[DType] = "bf16"  # the type of states; what other versions may have left is not that


class GivenStates:
    """Of each layer the states in front of its experts, [rows, H] in bf16, and the experts that each row went to,
    [rows, top_k] in int32: a row for each token, in the order of the text."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """With what an interrupted reading has left there, if it is whole."""
        self.folder, self._moe = folder, manifest.moe
        first = manifest.layout_of(0).tensors
        self._hidden = next(spec.shape[-1] for spec in first if spec.name == "up")
        self._rows = [0] * self._moe.num_layers
        self.pieces = 0  # of the text, that are in the files
        with suppress(OSError, *MALFORMED):
            record = json.loads(read_small(self.folder / _RECORD))
            rows, pieces = list(map(int, record["rows"])), int(record["pieces"])
            enough = all(
                path.stat().st_size >= count * width
                for layer, count in enumerate(rows)
                for path, width in zip(self._paths(layer), self._widths, strict=True)
            )
            if record["states"] == _KEPT and len(rows) == len(self._rows) and enough:
                self._rows, self.pieces = rows, pieces

    def clear(self) -> None:
        self._rows, self.pieces = [0] * len(self._rows), 0

    def begin(self, tokens: int) -> None:
        """Raises DiskSpaceError where there is no room for what the files lack of so many of them."""
        with errors_named(self.folder):
            make_folders(self.folder)
            needed = sum(
                max(0, tokens * width - (path.stat().st_size if path.exists() else 0))
                for layer in range(len(self._rows))
                for path, width in zip(self._paths(layer), self._widths, strict=True)
            )
            free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise DiskSpaceError(
                f"what {tokens:,} tokens give to the experts takes {size_text(needed)} more for a while, and "
                f"{self.folder} has {size_text(free)}; free some, or give fewer --calibrate-tokens"
            )

    @property
    def _widths(self) -> tuple[int, int]:
        return 2 * self._hidden, 4 * self._moe.top_k

    def _paths(self, layer: int) -> tuple[Path, Path]:
        return self.folder / f"{layer}.states", self.folder / f"{layer}.experts"

    def add(self, layer: int, hidden: Float32Array, experts: IntArray) -> None:
        """Of one piece of text or a part of it; hidden [tokens, H], experts [tokens, top_k]."""
        both = bf16_bits(hidden), experts.astype(np.int32)
        for path, width, each in zip(self._paths(layer), self._widths, both, strict=True):
            with errors_named(path), path.open("r+b" if path.exists() else "wb") as file:
                file.seek(self._rows[layer] * width)
                file.write(np.ascontiguousarray(each).data)
        self._rows[layer] += len(hidden)

    def save(self, pieces: int) -> None:
        """What has been read so far is what an interrupted reading goes on with."""
        self.pieces = pieces
        with errors_named(self.folder):
            publish(self.folder / _RECORD, json.dumps({"states": _KEPT, "rows": self._rows, "pieces": pieces}).encode())

    def experts(self, layer: int) -> IntArray:
        """Those that each row went to, [rows, top_k]."""
        _, path = self._paths(layer)
        with errors_named(path):
            found = np.fromfile(path, np.int32, self._rows[layer] * self._moe.top_k)
        return found.reshape(self._rows[layer], -1).astype(np.int64)

    def states(self, layer: int, rows: IntArray) -> Float32Array:
        """Of some rows, [len(rows), H]; the others stay on the disk."""
        path, _ = self._paths(layer)
        with errors_named(path):
            found = np.memmap(path, np.uint16, "r", shape=(self._rows[layer], self._hidden))[rows]
        return floats(found.reshape(-1).data, _KEPT).reshape(len(rows), -1)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Noting:
    """Stands in front of a kernel, and notes what its experts are given."""

    def __init__(self, kernel: ExpertKernel, states: GivenStates) -> None:
        self._kernel, self._states = kernel, states
        self.norm_outputs = kernel.norm_outputs

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        self._states.add(layer, hidden, ids)
        return self._kernel.begin(hidden, ids, weights, layer)

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        self._kernel.compute(experts, offsets)

    def finish(self, out: Float32Array) -> None:
        self._kernel.finish(out)
