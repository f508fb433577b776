"""manifest.json: what a stored model consists of, with a checksum for every expert and file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from moeinf.errors import StoreError
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.format import DENSE_FILE, BlockTensor, is_quantised, round_up, shard_file
from moeinf.store.quantisation import CHOICES, KEEP, Choice, Quantisation
from moeinf.types import (
    BLOCK_ALIGN_BYTES,
    DTYPE_BYTES,
    FORMAT_BLOCKS,
    TENSOR_ALIGN_BYTES,
    DType,
    ExpertLayout,
    Format,
    ModelInfo,
    MoeShape,
    TensorSpec,
    format_bytes,
)

MANIFEST_FILE = "manifest.json"
VERSION = 2  # 1 knew no quantised formats
ID_DIGITS = 12
_LARGEST = 1 << 62
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model came from: a Hub repository at a commit, a folder, or the package itself."""

    kind: Literal["hub", "folder", "embedded"]
    location: str  # org/repo, absolute path, or name of the embedded model
    revision: str = ""  # commit; hub only

    def same_origin(self, other: ModelSource) -> bool:
        """Tells whether one may be a later state of the other. The Hub does not distinguish capitals."""
        return (self.kind, self.location.lower()) == (other.kind, other.location.lower()) and (
            self.kind == "hub" or self.location == other.location
        )

    def to_json(self) -> dict[str, str]:
        key = _LOCATION_KEYS[self.kind]
        return {"kind": self.kind, key: self.location} | ({"revision": self.revision} if self.kind == "hub" else {})


_LOCATION_KEYS = {"hub": "repo", "folder": "path", "embedded": "name"}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The experts of one MoE layer."""

    file: str
    num_bytes: int
    sha256: tuple[str, ...]  # of each expert's block with its padding


@dataclass(frozen=True, slots=True)
class FileEntry:
    file: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    source: ModelSource
    info: ModelInfo
    moe: MoeShape
    layout: ExpertLayout
    shards: tuple[ShardEntry, ...]  # by MoE layer
    files: tuple[FileEntry, ...]  # by name; dense.safetensors and what was taken over from the source
    quantisation: Quantisation = KEEP  # what was asked for
    fallbacks: tuple[str, ...] = ()  # one line for each reason why a format is another one
    dense_formats: Mapping[str, BlockTensor] = field(default_factory=dict)  # the quantised tensors of dense.safetensors

    @property
    def size_bytes(self) -> int:
        return sum(self.file_sizes().values())

    def file_sizes(self) -> dict[str, int]:
        """Returns the size of every file but the manifest."""
        shards = {shard.file: shard.num_bytes for shard in self.shards}
        return shards | {file.file: file.num_bytes for file in self.files}

    def dumps(self) -> bytes:
        """Returns the file's bytes. They depend on the content alone, as the model's id is their hash."""
        value = {
            "format": "moeinf",
            "version": VERSION,
            "source": self.source.to_json(),
            "model": _info_fields(self.info),
            "experts": dataclasses.asdict(self.moe) | dataclasses.asdict(self.layout),
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
            "files": [dataclasses.asdict(file) for file in self.files],
            "quantisation": dataclasses.asdict(self.quantisation) | {"fallbacks": list(self.fallbacks)},
            "dense_formats": {name: blocks._asdict() for name, blocks in self.dense_formats.items()},
        }
        return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _info_fields(info: ModelInfo) -> dict[str, Any]:
    """Leaves out fields at their defaults, so that a new field does not change the ids of models."""
    return {
        each.name: value for each in dataclasses.fields(info) if (value := getattr(info, each.name)) != each.default
    }


def model_id(manifest_bytes: bytes) -> str:
    return hashlib.sha256(manifest_bytes).hexdigest()[:ID_DIGITS]


def load(path: Path, expected_id: str = "") -> Manifest:
    """Reads and validates a manifest. expected_id: leading hex digits that its hash must have.

    Raises StoreError naming the file and the field.
    """
    with errors_named(path):
        data = read_small(path)
    if not hashlib.sha256(data).hexdigest().startswith(expected_id):
        raise StoreError(f"{path} is damaged (its hash is not the model's id); pull it again")
    return parse(data, str(path))


def parse(data: bytes, where: str) -> Manifest:
    root = _Object(parse_json_object(data, where, StoreError), where)
    if root.take("format", str) != "moeinf":
        raise StoreError(f"{where}: format is not 'moeinf'")
    version = root.number("version", 1)
    if version > VERSION:
        raise StoreError(
            f"{where} was made by a newer moeinf (store version {version}, this one reads {VERSION}); upgrade moeinf"
        )
    source = parse_source(root.take("source", dict), f"{where}: source")
    info = _parse_info(root.child("model"))
    moe, layout = _parse_experts(root.child("experts"))
    shards = tuple(_parse_shard(item, layer, moe, layout) for layer, item in enumerate(root.children("shards")))
    if len(shards) != moe.num_layers:
        raise StoreError(f"{where}: shards has {len(shards)} entries for {moe.num_layers} layers")
    files = tuple(_parse_file(item) for item in root.children("files"))
    names = [shard.file for shard in shards] + [file.file for file in files]
    if len(set(names)) != len(names) or DENSE_FILE not in names or MANIFEST_FILE in names:
        raise StoreError(f"{where}: files must name {DENSE_FILE}, each file once, and not the manifest")
    if version == 1:
        root.nothing_else()
        return Manifest(source, info, moe, layout, shards, files)
    quantisation, fallbacks = _parse_quantisation(root.child("quantisation"))
    formats = root.child("dense_formats")
    dense_formats = {name: _parse_blocks(formats.child(name)) for name in formats.names()}
    root.nothing_else()
    return Manifest(source, info, moe, layout, shards, files, quantisation, fallbacks, dense_formats)


class _Object:
    """Checked access to one JSON object; every error names the file and the field."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def take(self, name: str, kind: type) -> Any:
        self._taken.add(name)
        value = self._values.get(name)
        if type(value) is not kind:
            raise self.error(name, "is missing" if name not in self._values else f"is not of type {kind.__name__}")
        return value

    def number(self, name: str, minimum: int = 0) -> int:
        value: int = self.take(name, int)
        if not minimum <= value <= _LARGEST:
            raise self.error(name, f"is {value}; must be a whole number from {minimum}")
        return value

    def text(self, name: str, pattern: re.Pattern[str] | None = None) -> str:
        value: str = self.take(name, str)
        if not value.isprintable() or (pattern and not pattern.fullmatch(value)):
            raise self.error(name, f"is {value[:100]!r}, which is not allowed")
        return value

    def dtype(self) -> DType:
        value = self.text("dtype")
        if value not in DTYPE_BYTES:
            raise self.error("dtype", f"is {value[:100]!r}; known: {', '.join(DTYPE_BYTES)}")
        return cast(DType, value)

    def format(self, name: str) -> Format:
        value = self.text(name)
        if value not in FORMAT_BLOCKS:
            raise self.error(name, f"is {value[:100]!r}; known: {', '.join(FORMAT_BLOCKS)}")
        return cast(Format, value)

    def shape(self, format: Format) -> tuple[int, ...]:
        """Reads the shape of a tensor in this format: positive whole numbers, and rows of whole blocks."""
        shape = self.take("shape", list)
        if not all(type(size) is int and 0 < size < 1 << 31 for size in shape) or not 1 <= len(shape) <= 8:
            raise self.error("shape", f"is {str(shape)[:100]}; must be positive whole numbers")
        weights = FORMAT_BLOCKS[format][0]
        if shape[-1] % weights:
            raise self.error("shape", f"is {shape}; rows must be whole {format} blocks of {weights}")
        return tuple(shape)

    def names(self) -> list[str]:
        for name in self._values:
            if not name or not name.isprintable():
                raise self.error(ascii(name[:100]), "is not a name")
        return list(self._values)

    def child(self, name: str) -> _Object:
        return _Object(self.take(name, dict), f"{self._where}: {name}")

    def children(self, name: str) -> list[_Object]:
        items = self.take(name, list)
        if not all(type(item) is dict for item in items):
            raise self.error(name, "is not a list of objects")
        return [_Object(item, f"{self._where}: {name}[{i}]") for i, item in enumerate(items)]

    def nothing_else(self) -> None:
        for name in self._values.keys() - self._taken:
            raise self.error(str(name)[:100], "is not known to this version")

    def error(self, name: str, fault: str) -> StoreError:
        return StoreError(f"{self._where}: {name} {fault}; pull it again")


def parse_source(values: dict[str, Any], where: str) -> ModelSource:
    """Parses what `ModelSource.to_json` made. Raises StoreError, naming `where`."""
    item = _Object(values, where)
    kind = item.text("kind")
    if kind not in _LOCATION_KEYS:
        raise item.error("kind", f"is {kind[:100]!r}; known: {', '.join(_LOCATION_KEYS)}")
    location: str = item.take(_LOCATION_KEYS[kind], str)
    revision = item.text("revision") if kind == "hub" else ""
    item.nothing_else()
    return ModelSource(cast(Literal["hub", "folder", "embedded"], kind), location, revision)


def _parse_info(item: _Object) -> ModelInfo:
    values: dict[str, Any] = {"dtype": item.dtype(), "architecture": item.text("architecture")}
    for each in dataclasses.fields(ModelInfo):
        if each.name not in values and (each.default is dataclasses.MISSING or each.name in item):
            values[each.name] = item.number(each.name)
    item.nothing_else()
    return ModelInfo(**values)


def _parse_experts(item: _Object) -> tuple[MoeShape, ExpertLayout]:
    moe = MoeShape(*(item.number(name, 1) for name in ("num_layers", "num_experts", "top_k")))
    if moe.top_k > moe.num_experts:
        raise item.error("top_k", f"is {moe.top_k} of {moe.num_experts} experts")
    tensors = tuple(_parse_tensor(tensor) for tensor in item.children("tensors"))
    layout = ExpertLayout(tensors, item.number("block_bytes", 1), item.number("stride_bytes", 1))
    end = 0
    for tensor in tensors:
        if tensor.offset_bytes < end or tensor.offset_bytes % TENSOR_ALIGN_BYTES:
            raise item.error("tensors", f"place {tensor.name!r} at {tensor.offset_bytes}: overlapping or not aligned")
        end = tensor.offset_bytes + tensor.num_bytes
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise item.error("tensors", "name a tensor twice")
    if layout.block_bytes != end:
        raise item.error("block_bytes", f"is {layout.block_bytes}, the tensors end at {end}")
    if layout.stride_bytes != round_up(end, BLOCK_ALIGN_BYTES):
        raise item.error(
            "stride_bytes", f"is {layout.stride_bytes}; must be block_bytes rounded up to {BLOCK_ALIGN_BYTES}"
        )
    item.nothing_else()
    return moe, layout


def _parse_tensor(item: _Object) -> TensorSpec:
    format = item.format("dtype")
    shape, num_bytes = item.shape(format), item.number("num_bytes", 1)
    if num_bytes != format_bytes(format, shape):
        raise item.error("num_bytes", f"is {num_bytes}, which is not that of {format} {list(shape)}")
    spec = TensorSpec(item.text("name"), format, shape, item.number("offset_bytes"), num_bytes)
    item.nothing_else()
    return spec


def _parse_quantisation(item: _Object) -> tuple[Quantisation, tuple[str, ...]]:
    choices = {name: item.text(name) for name in ("experts", "dense")}
    for name, value in choices.items():
        if value not in CHOICES:
            raise item.error(name, f"is {value[:100]!r}; known: {', '.join(CHOICES)}")
    fallbacks = item.take("fallbacks", list)
    if not all(type(line) is str and line.isprintable() for line in fallbacks):
        raise item.error("fallbacks", "is not a list of lines")
    item.nothing_else()
    return Quantisation(cast(Choice, choices["experts"]), cast(Choice, choices["dense"])), tuple(fallbacks)


def _parse_blocks(item: _Object) -> BlockTensor:
    format = item.format("format")
    if not is_quantised(format):
        raise item.error("format", f"is {format}, which has no blocks")
    blocks = BlockTensor(format, item.shape(format))
    item.nothing_else()
    return blocks


def _parse_shard(item: _Object, layer: int, moe: MoeShape, layout: ExpertLayout) -> ShardEntry:
    shard = ShardEntry(item.text("file"), item.number("num_bytes", 1), tuple(item.take("sha256", list)))
    if shard.file != shard_file(layer):
        raise item.error("file", f"is {shard.file[:100]!r}, not {shard_file(layer)}")
    if shard.num_bytes != moe.num_experts * layout.stride_bytes:
        raise item.error("num_bytes", f"is {shard.num_bytes}; must be num_experts * stride_bytes")
    if len(shard.sha256) != moe.num_experts or not all(_is_sha256(text) for text in shard.sha256):
        raise item.error("sha256", f"is not {moe.num_experts} SHA-256 sums")
    item.nothing_else()
    return shard


def _parse_file(item: _Object) -> FileEntry:
    entry = FileEntry(item.text("file", _FILE_NAME), item.number("num_bytes"), item.text("sha256", _SHA256))
    item.nothing_else()
    return entry


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and bool(_SHA256.fullmatch(value))
