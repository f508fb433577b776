"""The form in which what `moeinf tune` has trained is kept: facts about it and its weights, in one npz file."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from moeinf.errors import StoreError
from moeinf.runtime.policy.eamc import DAMAGE
from moeinf.types import Float32Array, MoeShape

MOST_WEIGHT: Final = 1e4  # either way, as TunedUse has it: no product of such weights overflows


@dataclass(frozen=True, slots=True)
class TunedArchive:
    """One kind of file. The zip that it is has checksums."""

    format: str
    version: int
    what: str  # it holds, as errors call it
    most_bytes: int

    def dumps(self, model_id: str, shape: MoeShape, facts: Mapping[str, Any], weights: Mapping[str, Any]) -> bytes:
        own = {"format": self.format, "version": self.version, "model_id": model_id, "shape": _shape_as_list(shape)}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"facts": np.frombuffer(json.dumps({**own, **facts}).encode(), np.uint8), **weights}
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @contextmanager
    def opened(self, data: bytes, model_id: str, shape: MoeShape) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Facts and arrays, which are to be read inside: what is raised there as a fault of them is damage, too.

        Raises StoreError for what is damaged, of another version, or of another model.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                if sum(member.file_size for member in packed.infolist()) > self.most_bytes:
                    raise ValueError(f"more than {self.most_bytes} bytes when unpacked")
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            facts = json.loads(arrays.pop("facts").tobytes())
            if facts["format"] != self.format:
                raise ValueError("its format is another")
            if facts["version"] != self.version:
                raise StoreError(
                    f"the {self.what} has version {facts['version']}, this moeinf reads {self.version}; tune again"
                )
            if facts["model_id"] != model_id or facts["shape"] != _shape_as_list(shape):
                raise StoreError(f"the {self.what} belongs to another model; run `moeinf tune` again")
            yield facts, arrays
        except (*DAMAGE, TypeError, AttributeError) as error:
            raise StoreError(
                f"the {self.what} is damaged ({' '.join(str(error).split())}); run `moeinf tune` again"
            ) from error


def checked_weights(arrays: dict[str, Any], wanted: Mapping[str, tuple[int, ...]]) -> Mapping[str, Float32Array]:
    """Raises ValueError for what are no weights of these shapes."""
    if {name: array.shape for name, array in arrays.items()} != dict(wanted):
        raise ValueError("its weights have other shapes")
    if not all(array.dtype == np.float32 and (np.abs(array) <= MOST_WEIGHT).all() for array in arrays.values()):
        raise ValueError("its weights are no numbers, or larger than any can be")
    return arrays


def _shape_as_list(shape: MoeShape) -> list[Any]:
    return [shape.num_layers, shape.num_experts, shape.top_k, list(shape.counts)]
