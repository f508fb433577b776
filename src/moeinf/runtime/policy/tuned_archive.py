"""The file of a network that `moeinf tune` has trained: facts about it and its weights, in one npz with checksums."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from moeinf.errors import StoreError, in_a_line
from moeinf.runtime.policy.eamc import DAMAGE
from moeinf.types import Float32Array, Json, JsonMapping, JsonObject, MoeShape

_FORMAT: Final = "moeinf tuned"
_VERSION: Final = 1
MOST_WEIGHT: Final = 1e4  # either way, as TunedUse has it: no product of such weights overflows


def dumps(model_id: str, shape: MoeShape, facts: JsonMapping, weights: Mapping[str, Float32Array]) -> bytes:
    own = {"format": _FORMAT, "version": _VERSION, "model_id": model_id, "shape": _shape_as_list(shape)}
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {"facts": np.frombuffer(json.dumps({**own, **facts}).encode(), np.uint8), **weights}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@contextmanager
def opened(
    data: bytes, model_id: str, shape: MoeShape, most_bytes: int
) -> Iterator[tuple[JsonObject, dict[str, Float32Array]]]:
    """Facts and arrays, which are to be read inside: what is raised there as a fault of them is damage, too.

    Raises StoreError for what is damaged, of another version, or of another model.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            if sum(member.file_size for member in packed.infolist()) > most_bytes:
                raise ValueError(f"more than {most_bytes} bytes when unpacked")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        facts = json.loads(arrays.pop("facts").tobytes())
        if facts["format"] != _FORMAT:
            raise ValueError("its format is another")
        if facts["version"] != _VERSION:
            raise StoreError(
                f"the tuned network has version {facts['version']}, this moeinf reads {_VERSION}; tune again"
            )
        if facts["model_id"] != model_id or facts["shape"] != _shape_as_list(shape):
            raise StoreError("the tuned network belongs to another model; run `moeinf tune` again")
        yield facts, arrays
    except DAMAGE as error:
        raise StoreError(f"the tuned network is damaged ({in_a_line(error)}); run `moeinf tune` again") from error


def checked_weights(
    arrays: Mapping[str, Float32Array], wanted: Mapping[str, tuple[int, ...]]
) -> Mapping[str, Float32Array]:
    """Raises ValueError for what are no weights of these shapes."""
    if {name: array.shape for name, array in arrays.items()} != dict(wanted):
        raise ValueError("its weights have other shapes")
    if not all(array.dtype == np.float32 and (np.abs(array) <= MOST_WEIGHT).all() for array in arrays.values()):
        raise ValueError("its weights are no numbers, or larger than any can be")
    return arrays


def _shape_as_list(shape: MoeShape) -> list[Json]:
    return [shape.num_layers, shape.num_experts, shape.top_k, list(shape.counts)]
