"""Writes a stored model again, with each part of each layer's experts and each dense matrix in a format of its own."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, cast

import numpy as np

from moeinf._native import quantise
from moeinf.errors import CheckpointError, UsageError
from moeinf.pull.checkpoint.convert import num_threads
from moeinf.pull.checkpoint.seal import write_small_file
from moeinf.pull.events import PullProgress
from moeinf.pull.gguf.index import Index, write_model
from moeinf.pull.gguf.repack import read_back
from moeinf.pull.importance import DENSE, Importance, Place, plan_of
from moeinf.store.dense import dense_tensors
from moeinf.store.files import errors_named, make_folders, open_regular, read_fully, read_small, write_fully
from moeinf.store.format import DENSE_FILE, BlockTensor, dense_header, expert_layout, is_quantised, shard_file
from moeinf.store.library import Library, StoredModel
from moeinf.store.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    ShardEntry,
    StoredFormats,
    model_id,
    shard_entries,
    slot_layout,
)
from moeinf.store.numbers import plain_dtype
from moeinf.store.quantisation import FITTED, FormatPlan, Quantisation, dense_tensors_of, expert_formats
from moeinf.store.sums.checksums import CHECKSUMS_FILE
from moeinf.threads import mapped
from moeinf.types import ByteArray, DType, ExpertLayout, Float32Array, Format, TensorSpec

Recipe = Mapping[Place, Format]  # of what changes
Advance = Callable[[int], None]


class Corrects(Protocol):
    """Rounds the parts of an expert so that what is lost of some columns is made up for by others."""

    def expert(self, layer: int, expert: int, block: ByteArray, wanted: Mapping[str, Format]) -> dict[str, ByteArray]:
        """The parts that it rounds, by name. block: as the model stores it; wanted: the formats of what changes."""
        ...


@dataclass(frozen=True, slots=True)
class Weighing:
    """How columns are weighed when they are rounded."""

    importance: Importance | None = None  # None: all alike
    sha256: str = ""  # of what that was made of
    told: tuple[str, ...] = ()  # of it, for `pull` and `show`
    correction: Corrects | None = None  # of experts, in what is stored; what is measured is rounded without it


ALIKE: Final = Weighing()


@dataclass(frozen=True, slots=True)
class Refit:
    """A stored model that is to be written again, under another name."""

    stored: StoredModel
    recipe: Recipe
    name: str
    told: tuple[str, ...] = ()  # lines for who looks at it
    weighing: Weighing = ALIKE

    @property
    def text(self) -> str:
        """Of two with the same, of one model and rounded alike, the files are the same."""
        return repr((sorted(self.recipe.items()), *self.told))


def check_whole(name: str, manifest: Manifest) -> None:
    """Raises UsageError for a model whose weights have lost bits already, or lie in files of another program."""
    experts = {spec.dtype for spec in manifest.layout_of(0).tensors}
    if manifest.in_place is not None or manifest.formats.dense or not all(map(plain_dtype, experts)):
        raise UsageError(f"{name} is quantised already; formats are chosen for a checkpoint in bf16, f16 or f32")


def recipe_of(stored: StoredModel, asked: Quantisation, formats: FormatPlan) -> dict[Place, Format]:
    """What `pull` would make of the model's checkpoint, but for a head of its own in place of one that is tied."""
    plan, manifest = plan_of(stored), stored.manifest
    kinds = {name: kind[0] for name, kind in dense_kinds(stored, {}).items()}
    missing: dict[str, Format] = {name: "bf16" for name in plan.dense if name not in kinds}
    made = dense_tensors_of(plan, asked, {**missing, **kinds}, formats)
    dense: dict[Place, Format] = {(DENSE, name): made[name].format for name in kinds if name in made}
    sources = {spec.name: spec.dtype for spec in manifest.layout_of(0).tensors}
    experts = expert_formats(plan, asked.experts, sources, formats)
    wanted = dense | {(layer, part): experts[part] for layer in range(manifest.moe.num_layers) for part in experts}
    stays = {(DENSE, name): kind for name, kind in kinds.items()}
    stays |= {(layer, part): sources[part] for layer in range(manifest.moe.num_layers) for part in sources}
    return {place: format for place, format in wanted.items() if format != stays[place]}


def layouts(manifest: Manifest, recipe: Recipe) -> list[ExpertLayout]:
    """The layout of each layer."""
    return [
        expert_layout([(spec.name, recipe.get((layer, spec.name), spec.dtype), spec.shape) for spec in each.tensors])
        for layer in range(manifest.moe.num_layers)
        for each in (manifest.layout_of(layer),)
    ]


def dense_kinds(stored: StoredModel, recipe: Recipe) -> dict[str, tuple[Format, tuple[int, ...]]]:
    """Format and shape of each tensor of the dense file."""
    return {
        spec.name: (recipe.get((DENSE, spec.name), spec.dtype), spec.shape)
        for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense)
    }


def store_bytes(stored: StoredModel, recipe: Recipe) -> int:
    """Of the weights, as they are stored."""
    manifest = stored.manifest
    experts = sum(
        manifest.moe.experts_of(layer) * layout.stride_bytes for layer, layout in enumerate(layouts(manifest, recipe))
    )
    head, specs = dense_header(dense_kinds(stored, recipe))
    return experts + len(head) + sum(spec.num_bytes for spec in specs)


def trial(stored: StoredModel, recipe: Recipe, folder: Path, importance: Importance | None = None) -> StoredModel:
    """A model that is there to be measured: what does not change are links, and nothing has a sum.

    folder: two below the home of the store, as models are; what lies there goes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    wanted = Refit(stored, recipe, stored.name, (), Weighing(importance))
    _write(wanted, folder, lambda _: None)
    manifest, made = stored.manifest, layouts(stored.manifest, recipe)
    counts = [manifest.moe.experts_of(layer) for layer in range(manifest.moe.num_layers)]
    sums = ["0" * 64] * sum(counts)
    dense = FileEntry(DENSE_FILE, (folder / DENSE_FILE).stat().st_size, "0" * 64)
    shards = shard_entries(manifest.moe, [layout.stride_bytes for layout in made], sums)
    sealed, files = Index(_described(wanted, made, shards, dense), _small_files(stored)).sealed()
    for name, data in files.items():
        write_small_file(folder / name, data)
    write_small_file(folder / MANIFEST_FILE, sealed.dumps())
    return StoredModel(stored.name, model_id(sealed.dumps()), folder)


def refit(wanted: Refit, folder: Path, progress: PullProgress) -> StoredModel:
    """Publishes a model. Layers that an interrupted call for the same one has left in `folder` are not made again."""
    stored, recipe = wanted.stored, wanted.recipe
    total = 2 * store_bytes(stored, recipe)  # written, and read back
    progress.start("quantising", wanted.name, total, 0)
    _write(wanted, folder, progress.advance)
    manifest, made = stored.manifest, layouts(stored.manifest, recipe)
    kinds = dense_kinds(stored, recipe)
    shards, dense, vision, checksums = read_back(manifest, made, kinds, folder, progress.advance)
    own = _described(wanted, made, shards, dense, vision)
    progress.finish()
    formats = hashlib.sha256(wanted.text.encode()).hexdigest()
    record = {"fingerprint": f"{stored.id} fitted as {formats}", "requested": ""}
    library, index = Library(stored.home), Index(own, _small_files(stored))
    return write_model(library, folder, wanted.name, index, record, checksums)


def _described(
    wanted: Refit,
    made: Sequence[ExpertLayout],
    shards: tuple[ShardEntry, ...],
    dense: FileEntry,
    vision: FileEntry | None = None,
) -> Manifest:
    manifest = wanted.stored.manifest
    alike = len(set(made)) == 1
    kinds = dense_kinds(wanted.stored, wanted.recipe)
    blocks = {name: BlockTensor(*kind) for name, kind in kinds.items() if is_quantised(kind[0])}
    return replace(
        manifest,
        layout=made[0] if alike else slot_layout(made),
        layers=() if alike else tuple(made),
        shards=shards,
        files=(dense,),
        formats=StoredFormats(FITTED, (*manifest.formats.fallbacks, *wanted.told), blocks),
        vision=vision or manifest.vision,
    )


def _small_files(stored: StoredModel) -> dict[str, bytes]:
    """Those that lie beside the weights."""
    names = [entry.file for entry in stored.manifest.files if entry.file not in (DENSE_FILE, CHECKSUMS_FILE)]
    with errors_named(stored.path):
        return {name: read_small(stored.path / name) for name in names}


def _write(wanted: Refit, folder: Path, advance: Advance) -> None:
    """The files of weights; those that do not change are links to the model's own, and layers that are there stay."""
    stored, recipe = wanted.stored, wanted.recipe
    manifest = stored.manifest
    changed = {layer for layer, _ in recipe}
    made = layouts(manifest, recipe)
    make_folders(folder)
    with errors_named(folder):
        for entry in (manifest.ahead, manifest.vision):
            if entry is not None:
                _link(stored.path / entry.file, folder / entry.file)
        for layer in range(manifest.moe.num_layers):
            path = folder / shard_file(layer)
            if layer not in changed:
                _link(stored.path / shard_file(layer), path)
            elif path.exists():
                advance(path.stat().st_size)
            else:
                part = path.with_suffix(".part")
                _write_layer(wanted, layer, made[layer], part, advance)
                os.replace(part, path)
        if DENSE in changed:
            _write_dense(stored, dense_kinds(stored, recipe), folder / DENSE_FILE, advance, wanted.weighing.importance)
        else:
            _link(stored.dense_path, folder / DENSE_FILE)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    os.link(source, target)


def _write_layer(refitted: Refit, layer: int, layout: ExpertLayout, path: Path, advance: Advance) -> None:
    stored, importance, correction = refitted.stored, refitted.weighing.importance, refitted.weighing.correction
    source = stored.path / shard_file(layer)
    given = stored.manifest.layout_of(layer)

    pairs = list(zip(given.tensors, layout.tensors, strict=True))
    wanted = {new.name: new.dtype for old, new in pairs if old.dtype != new.dtype}

    def corrected(expert: int, data: ByteArray) -> dict[str, ByteArray]:
        try:
            return {} if correction is None else correction.expert(layer, expert, data, wanted)
        except ValueError as error:
            raise CheckpointError(f"expert {expert} of MoE layer {layer}: {error}") from error

    def made(expert: int) -> ByteArray:
        data = _read(source, expert * given.stride_bytes, given.stride_bytes)
        block, ready = np.zeros(layout.stride_bytes, np.uint8), corrected(expert, data)
        for old, new in pairs:
            out = block[new.offset_bytes : new.offset_bytes + new.num_bytes]
            if new.name in ready:
                out[:] = ready[new.name]
                continue
            weights = None if importance is None else importance.of_expert(layer, old.name, expert)
            _convert(old, new.dtype, data[old.offset_bytes : old.offset_bytes + old.num_bytes], out, weights)
        return block

    with path.open("wb") as shard:
        experts, together = stored.manifest.moe.experts_of(layer), num_threads() if correction is None else 1
        for start in range(0, experts, together):
            for block in mapped(made, range(start, min(start + together, experts)), together):
                shard.write(block.data)
                advance(len(block))
        shard.flush()
        os.fsync(shard.fileno())


def _write_dense(
    stored: StoredModel,
    kinds: Mapping[str, tuple[Format, tuple[int, ...]]],
    path: Path,
    advance: Advance,
    importance: Importance | None,
) -> None:
    path.unlink(missing_ok=True)
    given = {spec.name: spec for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense)}
    head, specs = dense_header(kinds)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_fully(fd, head, 0, path)
        for spec in specs:
            old = given[spec.name]
            out = np.empty(spec.num_bytes, np.uint8)
            weights = None if importance is None else importance.of_dense(spec.name, spec.shape[-1])
            _convert(old, spec.dtype, _read(stored.dense_path, old.offset_bytes, old.num_bytes), out, weights)
            write_fully(fd, out.data, spec.offset_bytes, path)
            advance(spec.num_bytes)
        os.fsync(fd)
    finally:
        os.close(fd)


def _convert(old: TensorSpec, format: Format, data: ByteArray, out: ByteArray, importance: Float32Array | None) -> None:
    if format == old.dtype:
        out[:] = data
        return
    cols = old.shape[-1]
    try:
        quantise(format, data, cast(DType, old.dtype), math.prod(old.shape) // cols, cols, out, importance)
    except ValueError as error:
        raise CheckpointError(f"tensor {old.name!r}: {error}") from error


def _read(path: Path, offset: int, num_bytes: int) -> ByteArray:
    data = np.empty(num_bytes, np.uint8)
    fd = open_regular(path)
    try:
        read_fully(fd, data.data, offset, path)
    finally:
        os.close(fd)
    return data
