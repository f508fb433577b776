"""A GGUF adapter in the form of PEFT, for one model, whose tensors have names and orders of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moeinf._native import dequantise
from moeinf.errors import UnsupportedModelError
from moeinf.gguf.configs.architectures import architectures_of
from moeinf.gguf.gguf_tensors import some_places_of
from moeinf.gguf.header import Gguf, GgufTensor, Value
from moeinf.gguf.undo import Columns, Kind, Rows, Stack, Step, Stored, TakeRows, Undo
from moeinf.models.family import family_of
from moeinf.pull.gguf.weight_file import WeightFile
from moeinf.pull.lora.adapter_files import PREFIX, WEIGHTS_FILE
from moeinf.pull.lora.expert_layouts import expert_module
from moeinf.pull.lora.gguf_adapter import EMBEDDING, GgufAdapter
from moeinf.store.files import errors_named, write_fully
from moeinf.store.format import Header, TensorEntry, raw_header
from moeinf.types import Float32Array, JsonObject, format_bytes

# What undoing a converter's work asks of the metadata of a model: the fields of config.json, or their product.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "ssm.group_count": ("linear_num_key_heads",),
    "ssm.time_step_rank": ("linear_num_value_heads",),
    "ssm.state_size": ("linear_key_head_dim",),
    "ssm.inner_size": ("linear_num_value_heads", "linear_value_head_dim"),
}
Factors = tuple[Float32Array, Float32Array]  # A [rank, columns] and B [rows, rank], whose product is added


@dataclass(frozen=True, slots=True)
class _Module:
    """A matrix of the model, and what becomes its A and B."""

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]  # of GGUF models, whose pairs it is made of
    undo: Undo = ()
    expert: int | None = None  # of the pair's stack
    first_row: int = 0  # of B, where a pair is of two parts of experts

    @property
    def looked_up(self) -> bool:
        return self.tensors == (EMBEDDING,)

    def entries(self, rank: int) -> Iterator[TensorEntry]:
        """Of A and B; where they lie is not known yet."""
        rows, columns = self.shape
        if self.looked_up:
            ends = {".lora_embedding_A": (rank, rows), ".lora_embedding_B": (columns, rank)}
        else:
            ends = {".lora_A.weight": (rank, columns), ".lora_B.weight": (rows, rank)}
        for end, shape in ends.items():
            yield TensorEntry(f"{PREFIX}{self.name}{end}", "F32", shape, 0, format_bytes("f32", shape))


class FittedAdapter:
    """As AdapterFiles."""

    def __init__(self, adapter: GgufAdapter, config: JsonObject, metadata: Mapping[str, Value]) -> None:
        """config: of the model. metadata: of its file; {} of a checkpoint.

        Raises UnsupportedModelError for a pair that the model has no place for.
        """
        self._adapter, self.where = adapter, adapter.where
        self._weights: Path | None = None  # once they are written, as each shard asks for them
        self._modules = _modules(adapter, config, metadata)
        self._rank = max(sum(map(adapter.rank, module.tensors)) for module in self._modules)
        told: JsonObject = {"peft_type": "LORA", "r": self._rank, "lora_alpha": self._rank}  # the scale is in B
        self.config = json.dumps(told | {"base_model_name_or_path": adapter.base}).encode()
        entries = {entry.name: entry for module in self._modules for entry in module.entries(self._rank)}
        self._head, places = raw_header(entries)
        self._entries = {
            name: TensorEntry(name, "F32", entry.shape, places[name], entry.num_bytes)
            for name, entry in entries.items()
        }

    @property
    def fingerprint(self) -> str:
        return self._adapter.fingerprint

    def header(self) -> Header:
        return self._entries

    def weights(self, folder: Path) -> Path:
        self._weights = self._weights or self._written(folder)
        return self._weights

    def _written(self, folder: Path) -> Path:
        path, source = folder / WEIGHTS_FILE, WeightFile(self._adapter.located(folder))
        try:
            with errors_named(path), path.open("wb") as file:
                write_fully(file.fileno(), self._head, 0, path)
                for module in self._modules:
                    for entry, numbers in zip(module.entries(self._rank), self._factors(module, source), strict=True):
                        data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data
                        write_fully(file.fileno(), data, self._entries[entry.name].offset_bytes, path)
        finally:
            source.close()
        return path

    def _factors(self, module: _Module, file: WeightFile) -> Factors:
        """A and B of a module, with the scale in B, and zeros up to the common rank."""
        made = [self._scaled(name, module, file) for name in module.tensors]
        for step in module.undo:
            made = [_undone(step, made)]
        ((a, b),) = made
        missing = self._rank - len(a)
        return np.pad(a, ((0, missing), (0, 0))), np.pad(b, ((0, 0), (0, missing)))

    def _scaled(self, name: str, module: _Module, file: WeightFile) -> Factors:
        a, b = (_numbers(tensor, module.expert, file) for tensor in self._adapter.pairs[name])
        if module.expert is not None:
            b = b[module.first_row : module.first_row + module.shape[0]]
        return a.T if module.looked_up else a, b * np.float32(self._adapter.scale(name))


def _modules(adapter: GgufAdapter, config: JsonObject, metadata: Mapping[str, Value]) -> list[_Module]:
    architecture, family = adapter.text("general.architecture"), family_of(config)
    own = (metadata["general.architecture"],) if metadata else architectures_of(family.name)
    if architecture not in own:  # as in llama.cpp
        named = f"the model is {own[0]!r:.50}" if len(own) == 1 else f"the model is of the family {family.name!r}"
        raise UnsupportedModelError(
            f"{adapter.where} is made for {architecture!r:.50}, {named}; take an adapter of this model"
        )
    plan = family.tensors
    tensors = {name: _adapted(name, *pair) for name, pair in adapter.pairs.items()}
    model = Gguf(adapter.gguf.files, metadata or _metadata_of(config, architecture), tensors)
    places = some_places_of(model, plan)
    found = [
        _Module(name.removesuffix(".weight"), each.shape, tuple(tensor.name for tensor in each.tensors), each.undo)
        for name, each in places.dense.items()
        if len(each.shape) == 2
    ]
    for layer, parts in enumerate(places.experts):
        for part, source in ((part, source) for part, source in parts.items() if len(source.shape) == 2):
            first = source.offset_bytes // format_bytes("f32", source.shape[1:])
            found += [
                _Module(expert_module(layer, expert, part), source.shape, (source.tensor.name,), (), expert, first)
                for expert in range(plan.moe.experts_of(layer))
            ]
    left = adapter.pairs.keys() - {name for module in found for name in module.tensors}
    moved = [m.name for m in found if not all(isinstance(step, Rows | TakeRows | Columns | Stack) for step in m.undo)]
    if left or moved:
        raise UnsupportedModelError(
            f"{adapter.where} changes {min(left or moved)!r}, for which the model has no tensor that moeinf could "
            "change so; check that the adapter is of this model, or take the one of PEFT that it was made of"
        )
    return found


def _adapted(name: str, a: GgufTensor, b: GgufTensor) -> GgufTensor:
    """The tensor of a model that a pair is for."""
    shape = (a.shape[0], b.shape[0]) if name == EMBEDDING else (*b.shape[:-1], a.shape[-1])
    return GgufTensor(name, "f32", shape, 0, 0, format_bytes("f32", shape))


def _metadata_of(config: JsonObject, architecture: str) -> Mapping[str, Value]:
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    found: dict[str, Value] = {"general.architecture": architecture}
    for name, fields in _NUMBERS.items():
        values = [value for field in fields if isinstance(value := text.get(field), int)]
        if len(values) == len(fields):
            found[f"{architecture}.{name}"] = math.prod(values)
    return found


def _numbers(tensor: GgufTensor, expert: int | None, file: WeightFile) -> Float32Array:
    """Of a matrix, or of the one of an expert in a stack: [rows, columns]."""
    rows, columns = tensor.shape[-2:]
    size = format_bytes(tensor.format, (rows, columns))
    start = tensor.offset_bytes + (size * expert if expert is not None and len(tensor.shape) > 2 else 0)
    values = np.empty((rows, columns), np.float32)
    dequantise(tensor.format, file.read(start, size), rows, columns, values)
    return values


def _undone(step: Step, factors: list[Factors]) -> Factors:
    """The factors of what a step makes of products."""
    if isinstance(step, Stack):
        a = np.concatenate([a for a, _ in factors])
        b = np.zeros((sum(len(b) for _, b in factors), len(a)), np.float32)
        row = column = 0
        for _, each in factors:
            b[row : row + len(each), column : column + each.shape[1]] = each
            row, column = row + len(each), column + each.shape[1]
        return a, b
    ((a, b),) = factors
    return (_moved(step, a), b) if isinstance(step, Columns) else (a, _moved(step, b))


def _moved(step: Step, matrix: Float32Array) -> Float32Array:
    kind = Kind("f32", matrix.shape)
    after = step.becomes([kind])
    assert after is not None, "some_places_of has asked"
    moved = step.apply([Stored(kind, np.ascontiguousarray(matrix).reshape(-1).view(np.uint8))])
    return np.ascontiguousarray(moved).view(np.float32).reshape(after.shape)
