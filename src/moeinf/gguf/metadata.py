"""The metadata of a GGUF file, read strictly: what is ill-typed is an error that names it, and nothing goes unread."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.header import Gguf, GgufTensor, Value
from moeinf.store.files import errors_named, open_regular, read_fully
from moeinf.types import Json

# Of an architecture: what says nothing of the mathematics, or says again what tensors and other fields say.
_HARMLESS = {
    "vocab_size",
    "tensor_data_layout",
    "use_parallel_residual",
    "rope.scaling.finetuned",
    "rope.dimension_sections",  # of images; a text has plain positions
    "nextn_predict_layers",
    "block_count",
}
# What says that there is none of it: one group of experts, weights times 1, experts in each layer.
_NONE = {
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_weights_scale": 1.0,
    "interleave_moe_layer_step": 1,
    "moe_every_n_layers": 1,
}
_MAX_NUMBERS = 1 << 16


class Metadata:
    """Typed access to the fields of one architecture, by their names without it."""

    def __init__(self, gguf: Gguf) -> None:
        self.gguf = gguf
        name = gguf.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise CheckpointError(f"{gguf.where} names no general.architecture; it is no model")
        self.architecture = name
        self._read = set(_HARMLESS)

    @property
    def where(self) -> str:
        return self.gguf.where

    def get(self, name: str) -> Value | None:
        """One value; of a list with one for each layer that which all have."""
        self._read.add(name)
        value = self.gguf.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, list | array) and not isinstance(value, str):
            different = set(value)
            if len(different) != 1:
                raise UnsupportedModelError(
                    f"{self.where}: {self.architecture}.{name} differs from layer to layer, which is not supported"
                )
            (value,) = different
        return value

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def values(self, name: str) -> list[Json] | None:
        """A list with a value for each layer; None where there is none, or one value for all."""
        self._read.add(name)
        value = self.gguf.metadata.get(f"{self.architecture}.{name}")
        return list(value) if isinstance(value, list | array) else None

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise self._fault(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float):
            raise self._fault(name, value, "a number")
        return shortest(float(value))  # type: ignore[arg-type]

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise self._fault(name, value, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if type(value) is not str:
            raise self._fault(name, value, "a text")
        return value

    def _fault(self, name: str, value: object, wanted: str) -> CheckpointError:
        name = f"{self.architecture}.{name}"
        if value is None:
            return CheckpointError(
                f"{self.where}: the metadata field {name} is missing; take a file of a newer llama.cpp"
            )
        return CheckpointError(f"{self.where}: {name} is {value!r:.100}; must be {wanted}")

    def refuse_others(self, of_others: str = "\0") -> None:
        """Refuses every field of the architecture that nobody has asked for: each may change the mathematics.

        of_others: with which the names of fields begin that are another model's.
        """
        for name, value in self.gguf.metadata.items():
            owner, _, field = name.partition(".")
            asked = field in self._read or field.startswith(of_others) or value == _NONE.get(field)
            if owner == self.architecture and not asked and value not in (0, 0.0, False):
                raise UnsupportedModelError(f"{self.where}: {name} = {value!r:.100} is not supported")

    # ---- what tensors tell

    def tensor(self, name: str) -> GgufTensor | None:
        return self.gguf.tensors.get(name)

    def has_in_a_layer(self, end: str) -> bool:
        return end in self._ends

    @cached_property
    def _ends(self) -> set[str]:
        """Names of tensors of layers, without the layer."""
        return {name.split(".", 2)[2] for name in self.gguf.tensors if name.startswith("blk.") and name.count(".") > 1}

    def rows(self, name: str) -> int:
        tensor = self.tensor(name)
        if tensor is None:
            raise CheckpointError(f"{self.where} has no tensor {name!r}; it is no whole model")
        return tensor.shape[0]


def numbers_of(gguf: Gguf, tensor: GgufTensor) -> list[float]:
    """The values of a small f32 tensor. Reads the file."""
    if tensor.format != "f32" or tensor.num_bytes > 4 * _MAX_NUMBERS:
        raise CheckpointError(f"{gguf.where}: tensor {tensor.name!r} must be a few numbers in f32")
    path = gguf.files[tensor.file].path
    data = bytearray(tensor.num_bytes)
    with errors_named(path, CheckpointError):
        fd = open_regular(path)
        try:
            read_fully(fd, memoryview(data), tensor.offset_bytes, path)
        finally:
            os.close(fd)
    return [shortest(value) for value in struct.unpack(f"<{len(data) // 4}f", data)]


def shortest(value: float) -> float:
    """The shortest decimal that is the same in float32: metadata have no more, and 1e-6 should not look otherwise."""
    return float(str(np.float32(value))) if abs(value) < 3e38 else value


def texts_of(metadata: Mapping[str, Value], name: str, where: str) -> list[str]:
    """A list of texts, [] where there is none."""
    value = metadata.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{where}: {name} must be a list of texts; the file is damaged")
    return [str(item) for item in value]
