"""Makes a model of the store out of a GGUF file's header: all but its weights, which stay where they are."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.gguf_tokenizer import tokenizer_files
from moeinf.gguf.gguf_vision import processor_file, tower_places
from moeinf.gguf.header import Gguf, GgufFile, GgufTensor
from moeinf.gguf.metadata import numbers_of
from moeinf.gguf.placement import DenseSource, ExpertSource, Placement
from moeinf.gguf.undo import Kind, outcome, undo_json
from moeinf.gguf.unread_tensors import left_out
from moeinf.models.family import AnyFamily, family_of
from moeinf.pull.checkpoint.seal import write_small_file
from moeinf.pull.steps import Headers
from moeinf.store.files import errors_named, make_folders, publish, sync_folder
from moeinf.store.format import BlockTensor, is_quantised
from moeinf.store.library import SOURCE_RECORD_FILE, Library, StoredModel
from moeinf.store.manifest import MANIFEST_FILE, FileEntry, Manifest, ModelSource, StoredFormats, model_id, slot_layout
from moeinf.store.placed.places import (
    OWN_FOLDER,
    DensePlace,
    InPlace,
    PartPlace,
    PlacedFile,
    TensorPlace,
    placed_layout,
)
from moeinf.store.placed.scales import Scales
from moeinf.store.placed.verify_placed import header_digest, samples_digest
from moeinf.store.sums.checksums import CHECKSUMS_FILE
from moeinf.store.sums.spans import Span, check_spans
from moeinf.text.templates.file import TEMPLATE_FILE
from moeinf.text.templates.own import OWN_NOTE, has_template, own_template
from moeinf.text.tokenizer import beyond_the_embedding, check_text_files
from moeinf.types import DTYPE_BYTES, DType, ExpertLayout, JsonObject, MoeShape, TensorPlan, TensorSpec, format_bytes

NO_SUMS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Index:
    """A model without its weights: its manifest, whose files lack the small ones, and these."""

    manifest: Manifest
    small_files: Mapping[str, bytes]

    def with_template(self, template: str) -> Index:
        """With a chat template, where there is one to give and its files have none."""
        if not template or has_template(self.small_files):
            return self
        return replace(self, small_files={**self.small_files, TEMPLATE_FILE: template.encode()})

    def sealed(self, checksums: bytes = b"") -> tuple[Manifest, Mapping[str, bytes]]:
        """Manifest and all small files. checksums: the content of checksums.bin, where it was computed."""
        files = {**self.small_files, **({CHECKSUMS_FILE: checksums} if checksums else {})}
        entries = [FileEntry(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()]
        entries += self.manifest.files
        return replace(self.manifest, files=tuple(sorted(entries, key=lambda entry: entry.file))), files


def check_runs(gguf: Gguf) -> tuple[TensorPlan, Placement]:
    """Raises UnsupportedModelError or CheckpointError for what moeinf cannot run, from the header alone."""
    family = family_of(config_of(gguf))
    _tower_of(gguf, family)
    return family.tensors, places_of(gguf, family.tensors)


def all_files(gguf: Gguf) -> tuple[GgufFile, ...]:
    """The model's, and that of its tower."""
    return (*gguf.files, *(gguf.mmproj.files if gguf.mmproj else ()))


def _tower_of(gguf: Gguf, family: AnyFamily) -> dict[str, DenseSource]:
    """Where the tensors of the tower lie; none without one. Raises as `check_runs`."""
    if gguf.mmproj is None:
        return {}
    if family.vision is None:
        raise UnsupportedModelError(f"{gguf.mmproj.where}: {family.no_vision}")
    if len(gguf.mmproj.files) > 1 or gguf.mmproj.files[0].path.name in {file.path.name for file in gguf.files}:
        raise UnsupportedModelError(f"{gguf.mmproj.where}: a tower is one file with a name of its own; rename it")
    return tower_places(gguf, family.seen_by)


def make_index(
    gguf: Gguf,
    source: ModelSource,
    folder: str,
    note: Callable[[str], None],
    sha256: Mapping[str, str] = NO_SUMS,
    config: JsonObject | None = None,
    told: Sequence[str] = (),
) -> Index:
    """folder: in which the files lie, "" where that will be the model's own; the file of merged tensors is there in any
    case. sha256: of files, by their names, where it is known. config: where the metadata do not say it. told: lines
    that the model keeps.

    note: is given a line for each thing in the file that the user may take otherwise. Raises CheckpointError,
    UnsupportedModelError, OSError.
    """
    config = config_of(gguf) if config is None else config
    plan = family_of(config).tensors
    files = [
        PlacedFile(
            file.path.name,
            file.num_bytes,
            file.header_bytes,
            header_digest(file.path, file.header_bytes),
            _sha256(file) if _is_merged(file, gguf) else sha256.get(file.path.name, ""),
            _other_folder(file, gguf, folder),
            samples_digest(file.path, file.num_bytes, file.header_bytes),
        )
        for file in all_files(gguf)
    ]
    manifest = _manifest_of(gguf, config, source, folder, files)
    manifest = replace(manifest, formats=replace(manifest.formats, fallbacks=tuple(told)))
    manifest = replace(manifest, scales=_scales(gguf, places_of(gguf, plan)))
    small_files = {"config.json": _json(config), **tokenizer_files(gguf, note)}
    small_files |= processor_file(gguf) if gguf.mmproj else {}
    if own := own_template(small_files, _names_of(gguf)):
        small_files[TEMPLATE_FILE] = own.encode()
        note(OWN_NOTE)
    num_ids = check_text_files(small_files, gguf.where)
    for line in (*beyond_the_embedding(num_ids, manifest.info.vocab_size), *left_out(gguf)):
        note(line)
    return Index(manifest, small_files)


def _other_folder(file: GgufFile, gguf: Gguf, folder: str) -> str:
    """Where a file lies, if not in the folder of the others."""
    if _is_merged(file, gguf):
        return OWN_FOLDER if folder else ""
    return "" if file.path.parent == gguf.files[0].path.parent else str(file.path.parent)


def _is_merged(file: GgufFile, gguf: Gguf) -> bool:
    """Whether it is moeinf's own, of what an adapter has changed."""
    return bool(gguf.merged) and file == gguf.files[-1]


def _sha256(file: GgufFile) -> str:
    """Raises OSError."""
    [found] = check_spans([Span(file.path, 0, file.num_bytes)])
    if isinstance(found, OSError):
        raise found
    return found.sha256


def _names_of(gguf: Gguf) -> str:
    """By which names a model goes: that of its file, and those of its metadata."""
    said = (gguf.metadata.get(f"general.{key}") for key in ("name", "basename", "finetune"))
    return " ".join([gguf.files[0].path.name, *(text for text in said if isinstance(text, str))])


def headers_of(gguf: Gguf, source: ModelSource) -> Headers:
    """What the header says; reads nothing else, but for numbers that stand for a config's.

    Raises CheckpointError, UnsupportedModelError, OSError.
    """
    config = config_of(gguf)
    files = [PlacedFile(file.path.name, file.num_bytes, file.header_bytes, "", "") for file in all_files(gguf)]
    manifest = _manifest_of(gguf, config, source, "", files)
    return Headers(config, {}, manifest, (), sum(file.num_bytes for file in files))


def _manifest_of(
    gguf: Gguf, config: JsonObject, source: ModelSource, folder: str, files: Sequence[PlacedFile]
) -> Manifest:
    """Without what only the weights tell: the scales beside blocks."""
    family = family_of(config)
    plan = family.tensors
    placement = places_of(gguf, plan)
    dense = tuple(_dense_place(name, placement.dense[name]) for name in plan.dense)
    vision = tuple(_dense_place(name, place) for name, place in _tower_of(gguf, family).items())
    layers, experts = _layers(plan.moe, plan.parts, placement)
    return Manifest(
        source,
        family.info(_dtype(replace(gguf, merged={}), plan)),
        plan.moe,
        slot_layout(layers),
        (),
        (),
        formats=StoredFormats(dense=_dense_formats(placement)),
        layers=layers,
        in_place=InPlace(folder, tuple(files), dense, experts, vision),
    )


def write_model(
    library: Library,
    folder: Path,
    name: str,
    index: Index,
    record: Mapping[str, str],
    checksums: bytes = b"",
    revision: str = "",
) -> StoredModel:
    """Writes a model into a work folder and publishes it. Files of the weights are there already, or elsewhere.

    record: what the source record says. revision: that was asked for.
    """
    manifest, files = index.sealed(checksums)
    make_folders(folder)
    for each, data in files.items():
        write_small_file(folder / each, data)
    write_small_file(folder / SOURCE_RECORD_FILE, json.dumps(dict(record)).encode())
    with errors_named(folder):
        sync_folder(folder)
        publish(folder / MANIFEST_FILE, manifest.dumps())
    asked = replace(manifest.source, revision=revision)
    return library.publish(folder, model_id(manifest.dumps()), name, asked)


def discard(folder: Path) -> None:
    """Leaves nothing behind of a work folder."""
    with suppress(OSError):
        if os.path.lexists(folder):
            shutil.rmtree(folder)


def _json(config: Mapping[str, object]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _scales(gguf: Gguf, placement: Placement) -> Scales:
    """Reads the file. Raises CheckpointError for one that is no number."""

    def numbers(tensor: GgufTensor) -> tuple[float, ...]:
        found = tuple(numbers_of(gguf, tensor))
        if not all(map(math.isfinite, found)):
            raise CheckpointError(
                f"{gguf.where}: tensor {tensor.name!r} has a NaN or infinite scale; take another file"
            )
        return found

    return Scales(
        {name: numbers(source.scale)[0] for name, source in placement.dense.items() if source.scale},
        tuple(
            {part: numbers(source.scale) for part, source in layer.items() if source.scale}
            for layer in placement.experts
        ),
    )


def _dense_place(name: str, source: DenseSource) -> DensePlace:
    return DensePlace(
        name, tuple(_tensor_place(each) for each in source.tensors), source.shape, tuple(undo_json(source.undo))
    )


def _tensor_place(tensor: GgufTensor) -> TensorPlace:
    return TensorPlace(tensor.name, tensor.file, tensor.format, tensor.shape, tensor.offset_bytes)


def _layers(
    moe: MoeShape, parts: Mapping[str, tuple[int, ...]], placement: Placement
) -> tuple[tuple[ExpertLayout, ...], tuple[tuple[PartPlace, ...], ...]]:
    layouts, experts = [], []
    for layer, of_layer in enumerate(placement.experts):
        specs = [TensorSpec(part, of_layer[part].format, parts[part], 0, of_layer[part].num_bytes) for part in parts]
        places = [_part_place(part, of_layer[part]) for part in parts]
        layouts.append(placed_layout(specs, places, moe.experts_of(layer)))
        experts.append(tuple(places))
    return tuple(layouts), tuple(experts)


def _part_place(part: str, source: ExpertSource) -> PartPlace:
    return PartPlace(part, source.tensor.name, source.tensor.file, source.offset_bytes, source.stride_bytes)


def _dense_formats(placement: Placement) -> dict[str, BlockTensor]:
    """Of the tensors that stay quantised in memory."""
    found = {}
    for name, source in placement.dense.items():
        kind = outcome([Kind(each.format, each.shape) for each in source.tensors], source.undo)
        if kind is not None and is_quantised(kind.format):
            found[name] = BlockTensor(kind.format, kind.shape)
    return found


def _dtype(gguf: Gguf, plan: TensorPlan) -> DType:
    """Of keys, values and activations: the type of most dense bytes, bf16 where these are quantised."""
    used: Counter[str] = Counter()
    for source in places_of(gguf, plan).dense.values():
        for tensor in source.tensors:
            used[tensor.format] += format_bytes(tensor.format, tensor.shape)
    most = used.most_common(1)[0][0]
    return next((dtype for dtype in DTYPE_BYTES if dtype == most), "bf16")
