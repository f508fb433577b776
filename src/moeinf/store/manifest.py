"""manifest.json: what a stored model consists of, with a checksum for every expert and file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, cast

from moeinf.errors import StoreError
from moeinf.store.checked_json import CheckedObject
from moeinf.store.files import errors_named, parse_json_object, read_small
from moeinf.store.format import AHEAD_FILE, DENSE_FILE, VISION_FILE, BlockTensor, is_quantised, round_up, shard_file
from moeinf.store.placed.places import InPlace, parse_in_place
from moeinf.store.placed.scales import NO_SCALES, Scales, parse_scales
from moeinf.store.quantisation import DENSE_CHOICES, EXPERT_CHOICES, KEEP, DenseChoice, ExpertChoice, Quantisation
from moeinf.types import (
    BLOCK_ALIGN_BYTES,
    TENSOR_ALIGN_BYTES,
    ExpertLayout,
    JsonObject,
    ModelInfo,
    MoeShape,
    TensorSpec,
    format_bytes,
)

MANIFEST_FILE = "manifest.json"
# 1 knew no quantised formats, 2 neither layouts that differ by layer nor files of other programs, 3 neither numbers of
# experts that do nor scales beside blocks, 4 no layers that predict further tokens, 5 no towers that see.
VERSION = 8
ID_DIGITS = 12
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_GGUF_END = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$")
_SHA256 = re.compile(r"[0-9a-f]{64}")


SourceKind = Literal["hub", "folder", "file", "embedded"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model came from: a Hub repository at a commit, a folder, a GGUF file, or the package itself."""

    kind: SourceKind
    location: str  # org/repo, absolute path, or name of the embedded model
    revision: str = ""  # commit; hub only
    file: str = ""  # hub only: the first GGUF file of the model, "" for a checkpoint

    def same_origin(self, other: ModelSource) -> bool:
        """Tells whether one may be a later state of the other, of whatever revision.

        The Hub does not distinguish capitals, and other names of files there, but for parts of a split, may be those of
        other weights. A tag, which names end in, means their file.
        """
        if self.kind == other.kind == "hub":
            one, two = _stem(self.file), _stem(other.file)
            return self.location.lower() == other.location.lower() and (one.endswith(two) or two.endswith(one))
        return (self.kind, self.location) == (other.kind, other.location)

    def to_json(self) -> dict[str, str]:
        key = _LOCATION_KEYS[self.kind]
        commit = {"revision": self.revision} if self.kind == "hub" else {}
        return {"kind": self.kind, key: self.location} | commit | ({"file": self.file} if self.file else {})


def _stem(file: str) -> str:
    """What tells a GGUF file of a repository from others, or a tag; "" for none."""
    return _GGUF_END.sub("", file.lower().rpartition("/")[2])


_LOCATION_KEYS = {"hub": "repo", "folder": "path", "file": "path", "embedded": "name"}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The experts of one MoE layer."""

    file: str
    num_bytes: int
    sha256: tuple[str, ...]  # of each expert's block with its padding


def shard_entries(moe: MoeShape, strides: Sequence[int], sums: Iterable[str]) -> tuple[ShardEntry, ...]:
    """strides: of each layer; sums: those of all experts, layer by layer."""
    left = iter(sums)
    return tuple(
        ShardEntry(shard_file(layer), count * stride, tuple(islice(left, count)))
        for layer, stride in enumerate(strides)
        for count in (moe.experts_of(layer),)
    )


@dataclass(frozen=True, slots=True)
class FileEntry:
    file: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredFormats:
    """In which formats the weights of a model are, and why."""

    asked: Quantisation = KEEP
    fallbacks: tuple[str, ...] = ()  # one line for each reason why a format is another one, and for what is not usual
    dense: Mapping[str, BlockTensor] = field(default_factory=dict)  # the quantised dense tensors


@dataclass(frozen=True, slots=True)
class Manifest:
    source: ModelSource
    info: ModelInfo
    moe: MoeShape
    layout: ExpertLayout  # of every layer; where they differ, the first one's tensors in a slot that holds any expert
    shards: tuple[ShardEntry, ...]  # by MoE layer; none of weights in place
    files: tuple[FileEntry, ...]  # by name; dense.safetensors, unless it is in place, and what came from the source
    formats: StoredFormats = StoredFormats()
    layers: tuple[ExpertLayout, ...] = ()  # of each layer, where they differ
    in_place: InPlace | None = None  # where the weights lie in files of another program
    scales: Scales = NO_SCALES  # that it keeps beside its blocks
    ahead: FileEntry | None = None  # layers that predict further tokens; no run reads them
    vision: FileEntry | None = None  # the tower that sees pictures, which a run reads for these alone

    def layout_of(self, layer: int) -> ExpertLayout:
        return self.layers[layer] if self.layers else self.layout

    @property
    def size_bytes(self) -> int:
        return sum(self.file_sizes().values())

    def file_sizes(self) -> dict[str, int]:
        """Returns the size of every file but the manifest."""
        shards = {shard.file: shard.num_bytes for shard in self.shards}
        return shards | {file.file: file.num_bytes for file in self.all_files}

    @property
    def all_files(self) -> tuple[FileEntry, ...]:
        """Every file that has one sum: those that any run reads, and those of further layers and of the tower."""
        return (*self.files, *(each for each in (self.ahead, self.vision) if each is not None))

    @property
    def ahead_bytes(self) -> int:
        return 0 if self.ahead is None else self.ahead.num_bytes

    @property
    def vision_bytes(self) -> int:
        """Of the tower that sees pictures, 0 where there is none."""
        of_file = 0 if self.vision is None else self.vision.num_bytes
        return of_file if self.in_place is None else self.in_place.vision_bytes

    def dumps(self) -> bytes:
        """Returns the file's bytes. They depend on the content alone, as the model's id is their hash."""
        experts = {"layers": [dataclasses.asdict(layout) for layout in self.layers]} if self.layers else {}
        value: JsonObject = {
            "format": "moeinf",
            "version": self._version,
            "source": self.source.to_json(),
            "model": _set_fields(self.info),
            "experts": _set_fields(self.moe) | (experts or dataclasses.asdict(self.layout)),
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
            "files": [dataclasses.asdict(file) for file in self.files],
            "quantisation": dataclasses.asdict(self.formats.asked) | {"fallbacks": list(self.formats.fallbacks)},
            "dense_formats": {name: blocks._asdict() for name, blocks in self.formats.dense.items()},
        }
        value |= {"in_place": self.in_place.to_json()} if self.in_place else {}
        value |= {"scales": self.scales.to_json()} if self.scales else {}
        value |= {"ahead": dataclasses.asdict(self.ahead)} if self.ahead else {}
        value |= {"vision": dataclasses.asdict(self.vision)} if self.vision else {}
        return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()

    @property
    def _version(self) -> int:
        """The first one that knows of all that is there, so that ids of models stay what they were."""
        if self.in_place and self.in_place.merged:
            return 8
        if self.in_place and self.in_place.vision:
            return 7
        if self.vision or self.ahead:
            return 6 if self.vision else 5
        return 4 if self.moe.counts or self.scales else 3 if self.layers else 2


def _set_fields(values: ModelInfo | MoeShape) -> JsonObject:
    """Leaves out fields at their defaults, so that a new field does not change the ids of models."""
    return {
        each.name: value for each in dataclasses.fields(values) if (value := getattr(values, each.name)) != each.default
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
    root = CheckedObject(parse_json_object(data, where, StoreError), where)
    if root.take("format", str) != "moeinf":
        raise StoreError(f"{where}: format is not 'moeinf'")
    version = root.number("version", 1)
    if version > VERSION:
        raise StoreError(
            f"{where} was made by a newer moeinf (store version {version}, this one reads {VERSION}); upgrade moeinf"
        )
    source = parse_source(root.take("source", dict), f"{where}: source")
    info = _parse_info(root.child("model"))
    placed = version >= 3 and "in_place" in root
    experts = root.child("experts")
    differ = version == 3 or (version > 3 and "layers" in experts)
    moe, layouts = _parse_experts(experts, version, differ=differ, placed=placed)
    layout, layers = (slot_layout(layouts), layouts) if differ else (layouts[0], ())
    in_place = parse_in_place(root.child("in_place"), moe, layouts) if placed else None
    by_layer = layers or layouts * moe.num_layers
    items = root.children("shards")
    if len(items) != (0 if in_place else moe.num_layers):
        raise StoreError(f"{where}: shards has {len(items)} entries for {moe.num_layers} layers")
    shards = tuple(_parse_shard(item, layer, by_layer[layer], moe) for layer, item in enumerate(items))
    files = tuple(_parse_file(item) for item in root.children("files"))
    ahead = _parse_apart(root, "ahead", AHEAD_FILE, placed=placed) if version > 4 else None
    vision = _parse_apart(root, "vision", VISION_FILE, placed=placed) if version > 5 else None
    names = [each.file for each in shards] + [each.file for each in (*files, ahead, vision) if each is not None]
    names += [each.file for each in in_place.files] if in_place else []
    if len(set(names)) != len(names) or (DENSE_FILE not in names and not in_place) or MANIFEST_FILE in names:
        raise StoreError(f"{where}: files must name {DENSE_FILE}, each file once, and not the manifest")
    formats = _parse_formats(root) if version > 1 else StoredFormats()
    scaled = version > 3 and "scales" in root
    if scaled and not layers:
        raise root.error("scales", "are of weights whose layers share one layout")
    scales = parse_scales(root.child("scales"), moe, layers) if scaled else NO_SCALES
    root.nothing_else()
    return Manifest(source, info, moe, layout, shards, files, formats, layers, in_place, scales, ahead, vision)


def slot_layout(layers: Sequence[ExpertLayout]) -> ExpertLayout:
    """The layout of slots that hold experts of any of these layers; its tensors are those of the first."""
    largest = max(layers, key=lambda layout: layout.stride_bytes)
    return ExpertLayout(layers[0].tensors, largest.block_bytes, largest.stride_bytes)


def parse_source(values: JsonObject, where: str) -> ModelSource:
    """Parses what `ModelSource.to_json` made. Raises StoreError, naming `where`."""
    item = CheckedObject(values, where)
    kind = item.text("kind")
    if kind not in _LOCATION_KEYS:
        raise item.unknown("kind", kind, _LOCATION_KEYS)
    location: str = item.take(_LOCATION_KEYS[kind], str)
    revision = item.text("revision") if kind == "hub" else ""
    file = item.text("file") if kind == "hub" and "file" in item else ""
    item.nothing_else()
    return ModelSource(cast(SourceKind, kind), location, revision, file)


def _parse_info(item: CheckedObject) -> ModelInfo:
    values: JsonObject = {"dtype": item.dtype(), "architecture": item.text("architecture")}
    for each in dataclasses.fields(ModelInfo):
        if each.name not in values and (each.default is dataclasses.MISSING or each.name in item):
            values[each.name] = item.number(each.name)
    item.nothing_else()
    return ModelInfo(**values)


def _parse_experts(
    item: CheckedObject, version: int, *, differ: bool, placed: bool
) -> tuple[MoeShape, tuple[ExpertLayout, ...]]:
    """Returns the layout that all layers share, or where they differ that of each."""
    moe = _parse_shape(item, version)
    layers = item.children("layers") if differ else [item]
    layouts = tuple(_parse_layout(layer, placed=placed) for layer in layers)
    if differ and len(layouts) != moe.num_layers:
        raise item.error("layers", f"are {len(layouts)}, not {moe.num_layers}")
    for each in (item, *layers):
        each.nothing_else()
    return moe, layouts


def _parse_shape(item: CheckedObject, version: int) -> MoeShape:
    layers, most, top_k = (item.number(name, 1) for name in ("num_layers", "num_experts", "top_k"))
    counts = item.take("counts", list) if version > 3 and "counts" in item else []
    if counts:
        if len(counts) != layers or not all(type(count) is int and 1 <= count <= most for count in counts):
            raise item.error("counts", f"are not {layers} numbers from 1 to {most}")
        if max(counts) != most or min(counts) == most:
            raise item.error("counts", f"do not differ, or none is {most}")
    if top_k > min(counts, default=most):
        raise item.error("top_k", f"is {top_k} of {min(counts, default=most)} experts")
    return MoeShape(layers, most, top_k, tuple(counts))


def _parse_layout(item: CheckedObject, *, placed: bool) -> ExpertLayout:
    """placed: its tensors come with the rest of their blocks, which parse_in_place looks at."""
    tensors = tuple(_parse_tensor(tensor) for tensor in item.children("tensors"))
    layout = ExpertLayout(tensors, item.number("block_bytes", 1), item.number("stride_bytes", 1))
    end = 0
    for tensor in tensors:
        if tensor.offset_bytes < end or tensor.offset_bytes % TENSOR_ALIGN_BYTES:
            raise item.error("tensors", f"place {tensor.name!r} at {tensor.offset_bytes}: overlapping or not aligned")
        end = tensor.offset_bytes + tensor.num_bytes
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise item.error("tensors", "name a tensor twice")
    if layout.block_bytes < end or (layout.block_bytes > end and not placed):
        raise item.error("block_bytes", f"is {layout.block_bytes}, the tensors end at {end}")
    if layout.stride_bytes != round_up(layout.block_bytes, BLOCK_ALIGN_BYTES):
        raise item.error(
            "stride_bytes", f"is {layout.stride_bytes}; must be block_bytes rounded up to {BLOCK_ALIGN_BYTES}"
        )
    return layout


def _parse_tensor(item: CheckedObject) -> TensorSpec:
    format = item.format("dtype")
    shape, num_bytes = item.shape(format), item.number("num_bytes", 1)
    if num_bytes != format_bytes(format, shape):
        raise item.error("num_bytes", f"is {num_bytes}, which is not that of {format} {list(shape)}")
    spec = TensorSpec(item.text("name"), format, shape, item.number("offset_bytes"), num_bytes)
    item.nothing_else()
    return spec


def _parse_formats(root: CheckedObject) -> StoredFormats:
    asked, fallbacks = _parse_quantisation(root.child("quantisation"))
    dense = root.child("dense_formats")
    return StoredFormats(asked, fallbacks, {name: _parse_blocks(dense.child(name)) for name in dense.names()})


def _parse_quantisation(item: CheckedObject) -> tuple[Quantisation, tuple[str, ...]]:
    choices = {name: item.text(name) for name in ("experts", "dense")}
    known_ones: tuple[tuple[str, ...], ...] = (EXPERT_CHOICES, DENSE_CHOICES)
    for (name, value), known in zip(choices.items(), known_ones, strict=True):
        if value not in known:
            raise item.unknown(name, value, known)
    fallbacks = item.take("fallbacks", list)
    if not all(type(line) is str and line.isprintable() for line in fallbacks):
        raise item.error("fallbacks", "is not a list of lines")
    item.nothing_else()
    return Quantisation(cast(ExpertChoice, choices["experts"]), cast(DenseChoice, choices["dense"])), tuple(fallbacks)


def _parse_blocks(item: CheckedObject) -> BlockTensor:
    format = item.format("format")
    if not is_quantised(format):
        raise item.error("format", f"is {format}, which has no blocks")
    blocks = BlockTensor(format, item.shape(format))
    item.nothing_else()
    return blocks


def _parse_shard(item: CheckedObject, layer: int, layout: ExpertLayout, moe: MoeShape) -> ShardEntry:
    shard = ShardEntry(item.text("file"), item.number("num_bytes", 1), tuple(item.take("sha256", list)))
    if shard.file != shard_file(layer):
        raise item.error("file", f"is {shard.file[:100]!r}, not {shard_file(layer)}")
    experts = moe.experts_of(layer)
    if shard.num_bytes != experts * layout.stride_bytes:
        raise item.error("num_bytes", f"is {shard.num_bytes}; must be {experts} experts * stride_bytes")
    if len(shard.sha256) != experts or not all(_is_sha256(text) for text in shard.sha256):
        raise item.error("sha256", f"is not {experts} SHA-256 sums")
    item.nothing_else()
    return shard


def _parse_file(item: CheckedObject) -> FileEntry:
    entry = FileEntry(item.text("file", _FILE_NAME), item.number("num_bytes"), item.text("sha256", _SHA256))
    item.nothing_else()
    return entry


def _parse_apart(root: CheckedObject, name: str, file: str, *, placed: bool) -> FileEntry | None:
    """A part of the store that has a file of its own; None where there is none."""
    entry = _parse_file(root.child(name)) if name in root else None
    if entry is not None and (entry.file != file or placed):
        raise root.error(name, f"is not {file} of a store of its own")
    return entry


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and bool(_SHA256.fullmatch(value))
