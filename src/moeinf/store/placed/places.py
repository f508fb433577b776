"""Weights that are used where they lie, in files of another program: where each is, as a manifest of version 3 says."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from moeinf.store.checked_json import CheckedObject
from moeinf.store.format import round_up
from moeinf.types import BLOCK_ALIGN_BYTES, ExpertLayout, Format, Json, JsonObject, MoeShape, TensorSpec, format_bytes

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA256_OR_NONE = re.compile(r"([0-9a-f]{64})?")
_RARE = ("folder", "samples_sha256")  # fields of a file that are left out where they are empty
_PLAIN_NAME = re.compile(r"[^/\0]{1,255}")
OWN_FOLDER = "."  # of a file that lies in the model's own folder, while others are elsewhere


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file that holds weights. It is known again by its size, its header and samples of what is behind that.

    The header says where everything lies; parts of two models of one architecture may have the same.
    """

    file: str  # its name
    num_bytes: int
    header_bytes: int  # all before the first tensor
    header_sha256: str
    sha256: str = ""  # of all of it, where the Hub told it or moeinf has written the file
    folder: str = ""  # absolute or OWN_FOLDER, where it is another than that of the other files
    samples_sha256: str = ""  # of some blocks of its weights; "" in older stores


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor of another program, as it lies."""

    tensor: str  # its name there
    file: int
    format: Format
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def num_bytes(self) -> int:
        return format_bytes(self.format, self.shape)


@dataclass(frozen=True, slots=True)
class DensePlace:
    """A dense tensor, and what it is made of: mostly one tensor as it lies, else what `undo` makes of several."""

    name: str  # that the family knows
    sources: tuple[TensorPlace, ...]
    shape: tuple[int, ...]  # that the family wants
    undo: tuple[JsonObject, ...] = ()  # moeinf.gguf.undo


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where one part of all experts of a layer lies. Form and size are those of the layer's layout."""

    part: str
    tensor: str  # its name there
    file: int
    offset_bytes: int  # of expert 0
    step_bytes: int  # from one expert to the next


@dataclass(frozen=True, slots=True)
class InPlace:
    folder: str  # in which the files lie; "" where that is the model's own
    files: tuple[PlacedFile, ...]
    dense: tuple[DensePlace, ...]
    experts: tuple[tuple[PartPlace, ...], ...]  # of each MoE layer, in the order of its layout
    vision: tuple[DensePlace, ...] = ()  # of the tower that sees pictures, all in the last file

    def paths(self, model_folder: Path) -> list[Path]:
        return [model_folder / (file.folder or self.folder) / file.file for file in self.files]

    def tower_path(self, model_folder: Path) -> Path | None:
        """The file of the tower, where there is one."""
        return self.paths(model_folder)[-1] if self.vision else None

    @property
    def merged(self) -> bool:
        """Whether some of the weights are the model's own, while the others lie elsewhere: it has an adapter."""
        return any(file.folder == OWN_FOLDER for file in self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def outside_bytes(self) -> int:
        """Of the files that do not lie in the model's own folder."""
        return sum(file.num_bytes for file in self.files if (file.folder or self.folder or OWN_FOLDER) != OWN_FOLDER)

    @property
    def dense_bytes(self) -> int:
        """Of what dense tensors are made of, each once."""
        sources = {(each.file, each.offset_bytes): each.num_bytes for place in self.dense for each in place.sources}
        return sum(sources.values())

    @property
    def vision_bytes(self) -> int:
        """Of the tower's tensors."""
        return sum(each.num_bytes for place in self.vision for each in place.sources)

    def dense_specs(self) -> tuple[TensorSpec, ...]:
        """The dense tensors by the names that the family knows, in the format in which most of each lies."""
        return tuple(
            TensorSpec(place.name, place.sources[0].format, place.shape, 0, sum(s.num_bytes for s in place.sources))
            for place in self.dense
        )

    def to_json(self) -> JsonObject:
        """Without fields that few have, so that ids of models stay what they were."""
        value = asdict(self)
        value["files"] = [{k: v for k, v in file.items() if v or k not in _RARE} for file in value["files"]]
        return value if self.vision else {name: each for name, each in value.items() if name != "vision"}


def region_bytes(offset_bytes: int, step_bytes: int, num_bytes: int, num_experts: int) -> int:
    """The memory that a part of any expert takes with the rest of its file's blocks.

    offset_bytes: of expert 0's in the file, step_bytes: to the next.
    """
    distinct = num_experts if step_bytes % BLOCK_ALIGN_BYTES else 1
    shifts = {(offset_bytes + expert * step_bytes) % BLOCK_ALIGN_BYTES for expert in range(distinct)}
    return round_up(max(shifts) + num_bytes, BLOCK_ALIGN_BYTES)


def placed_layout(specs: list[TensorSpec], places: list[PartPlace], num_experts: int) -> ExpertLayout:
    """The layout of a slot for the experts of a layer: regions of whole blocks, one behind the other.

    A part begins somewhere in the first block of its region.
    """
    end, placed = 0, []
    for spec, place in zip(specs, places, strict=True):
        placed.append(TensorSpec(spec.name, spec.dtype, spec.shape, end, spec.num_bytes))
        end += region_bytes(place.offset_bytes, place.step_bytes, spec.num_bytes, num_experts)
    return ExpertLayout(tuple(placed), end, end)


def parse_in_place(item: CheckedObject, moe: MoeShape, layouts: tuple[ExpertLayout, ...]) -> InPlace:
    """Checks that everything lies in its file behind the header, and fits the layouts. Raises StoreError."""
    folder = item.text("folder")
    if folder and not Path(folder).is_absolute():
        raise item.error("folder", f"is {folder[:100]!r}, which is no absolute path")
    files = tuple(_parse_file(each) for each in item.children("files"))
    if not files or len({file.file for file in files}) != len(files):
        raise item.error("files", "must name one file or more, each once")
    dense, vision = (
        tuple(_parse_dense(each, files) for each in (item.children(name) if name == "dense" or name in item else ()))
        for name in ("dense", "vision")
    )
    if len({place.name for place in (*dense, *vision)}) != len(dense) + len(vision):
        raise item.error("dense", "names a tensor twice")
    if any(source.file != len(files) - 1 for place in vision for source in place.sources):
        raise item.error("vision", "is not in the last file")
    rows = item.take("experts", list)
    if len(rows) != moe.num_layers or not all(isinstance(row, list) for row in rows):
        raise item.error("experts", f"is not a list of {moe.num_layers} lists")
    experts = tuple(
        _parse_layer(item, row, number, files, moe, layout)
        for number, (row, layout) in enumerate(zip(rows, layouts, strict=True))
    )
    item.nothing_else()
    return InPlace(folder, files, dense, experts, vision)


def _parse_file(item: CheckedObject) -> PlacedFile:
    file = PlacedFile(
        item.text("file", _PLAIN_NAME),
        item.number("num_bytes", 1),
        item.number("header_bytes", 1),
        item.text("header_sha256", _SHA256),
        item.text("sha256", _SHA256_OR_NONE),
        item.text("folder") if "folder" in item else "",
        item.text("samples_sha256", _SHA256) if "samples_sha256" in item else "",
    )
    if file.folder not in ("", OWN_FOLDER) and not Path(file.folder).is_absolute():
        raise item.error("folder", f"is {file.folder[:100]!r}, which is no absolute path")
    if file.file in (".", "..") or file.header_bytes > file.num_bytes:
        raise item.error("file", "is no file with such a header")
    item.nothing_else()
    return file


def _parse_dense(item: CheckedObject, files: tuple[PlacedFile, ...]) -> DensePlace:
    sources = tuple(_parse_tensor(each, files) for each in item.children("sources"))
    undo = item.take("undo", list)
    if not sources or len(sources) > 8 or not all(type(step) is dict for step in undo):
        raise item.error("undo", "is not a list of steps, or has nothing to work on")
    place = DensePlace(item.text("name"), sources, item.shape("f32"), tuple(undo))
    item.nothing_else()
    return place


def _parse_tensor(item: CheckedObject, files: tuple[PlacedFile, ...]) -> TensorPlace:
    format = item.format("format", whole=True)
    place = TensorPlace(
        item.text("tensor"), item.number("file"), format, item.shape(format), item.number("offset_bytes")
    )
    _require_inside(item, files, place.file, place.offset_bytes, place.num_bytes)
    item.nothing_else()
    return place


def _parse_layer(
    item: CheckedObject,
    row: list[Json],
    number: int,
    files: tuple[PlacedFile, ...],
    moe: MoeShape,
    layout: ExpertLayout,
) -> tuple[PartPlace, ...]:
    parts = []
    for values in row:
        part = CheckedObject(values if isinstance(values, dict) else {}, f"{item.where}: experts[{number}]")
        parts.append(
            PartPlace(
                part.text("part"),
                part.text("tensor"),
                part.number("file"),
                part.number("offset_bytes"),
                part.number("step_bytes", 1),
            )
        )
        part.nothing_else()
    if [part.part for part in parts] != [spec.name for spec in layout.tensors]:
        raise item.error("experts", f"of layer {number} do not name the parts of its layout")
    for place, spec in zip(parts, layout.tensors, strict=True):
        if place.step_bytes < spec.num_bytes:
            raise item.error("experts", f"of layer {number} overlap in {place.part}")
        reach = (moe.experts_of(number) - 1) * place.step_bytes + spec.num_bytes
        _require_inside(item, files, place.file, place.offset_bytes, reach)
    if placed_layout(list(layout.tensors), parts, moe.experts_of(number)) != layout:
        raise item.error("experts", f"of layer {number} do not fit the regions of their layout")
    return tuple(parts)


def _require_inside(
    item: CheckedObject, files: tuple[PlacedFile, ...], file: int, offset_bytes: int, num_bytes: int
) -> None:
    if file >= len(files):
        raise item.error("file", f"is {file} of {len(files)}")
    if offset_bytes < files[file].header_bytes or offset_bytes + num_bytes > files[file].num_bytes:
        raise item.error("offset_bytes", f"puts {num_bytes} bytes at {offset_bytes}, outside of {files[file].file}")
