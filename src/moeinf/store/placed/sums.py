"""The units of which weights in place have checksums: parts of experts, dense tensors, rows of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeinf.errors import StoreError
from moeinf.store.manifest import Manifest
from moeinf.store.placed.places import InPlace, PartPlace
from moeinf.types import TensorSpec, format_bytes


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Adjacent units of equal length in one file."""

    file: int
    tensor: TensorSpec  # by its name there; offset_bytes counts from the start of the file
    unit_bytes: int
    units_of_expert: int = 0  # 0: of a dense tensor
    first_expert: int = 0

    def named(self, unit: int) -> str:
        """What a unit is called."""
        if self.units_of_expert:
            return f"tensor {self.tensor.name!r}, expert {self.first_expert + unit // self.units_of_expert}"
        row = f", row {unit}" if self.unit_bytes < self.tensor.num_bytes else ""
        return f"tensor {self.tensor.name!r}{row}"


def placed_runs(manifest: Manifest) -> list[PlacedRun]:
    """By file and offset. Raises StoreError for parts that lie in each other so that no units are made of them."""
    assert manifest.in_place is not None
    runs = {**_dense_runs(manifest.in_place, manifest.info.vocab_size), **_expert_runs(manifest, manifest.in_place)}
    return [runs[place] for place in sorted(runs)]


def _dense_runs(in_place: InPlace, vocab_size: int) -> dict[tuple[int, int], PlacedRun]:
    found = {}
    for place in (*in_place.dense, *in_place.vision):
        for source in place.sources:
            spec = TensorSpec(source.tensor, source.format, source.shape, source.offset_bytes, source.num_bytes)
            rows = len(source.shape) == 2 and source.shape[0] == vocab_size
            unit = format_bytes(source.format, source.shape[-1:]) if rows else source.num_bytes
            found[source.file, source.offset_bytes] = PlacedRun(source.file, spec, unit)
    return found


def _expert_runs(manifest: Manifest, in_place: InPlace) -> dict[tuple[int, int], PlacedRun]:
    """One for each tensor that holds a part of all experts of a layer, or several parts by turns, or of one expert."""
    found = dict[tuple[int, int], PlacedRun]()
    for layer, places in enumerate(in_place.experts):
        specs = {spec.name: spec for spec in manifest.layout_of(layer).tensors}
        for tensor in dict.fromkeys(place.tensor for place in places):
            parts = [place for place in places if place.tensor == tensor]
            first = min(parts, key=lambda place: place.offset_bytes)
            spec = specs[first.part]
            if len(parts) == 1 and first.step_bytes != spec.num_bytes:
                found |= _runs_of_each(first, spec, manifest.moe.experts_of(layer))
                continue
            alike = {(place.file, place.step_bytes, specs[place.part].num_bytes) for place in parts}
            offsets = sorted(place.offset_bytes - first.offset_bytes for place in parts)
            turns = [number * spec.num_bytes for number in range(len(parts))]
            if len(alike) > 1 or offsets != turns or first.step_bytes != len(parts) * spec.num_bytes:
                raise StoreError(f"{in_place.files[first.file].file}: tensor {tensor!r} mixes parts of other sizes")
            num_units = len(parts) * manifest.moe.experts_of(layer)
            whole = TensorSpec(
                tensor, spec.dtype, (num_units, *spec.shape), first.offset_bytes, num_units * spec.num_bytes
            )
            found[first.file, first.offset_bytes] = PlacedRun(first.file, whole, spec.num_bytes, len(parts))
    return found


def _runs_of_each(place: PartPlace, spec: TensorSpec, experts: int) -> dict[tuple[int, int], PlacedRun]:
    """Of a part whose experts have a tensor each, between which others lie."""
    found = {}
    for expert in range(experts):
        offset = place.offset_bytes + expert * place.step_bytes
        whole = TensorSpec(place.tensor, spec.dtype, spec.shape, offset, spec.num_bytes)
        found[place.file, offset] = PlacedRun(place.file, whole, spec.num_bytes, 1, expert)
    return found


def covers_experts(manifest: Manifest, runs: Sequence[tuple[str, int, int, int]]) -> bool:
    """Whether runs (file, start, bytes, bytes of a unit) have a sum for each part of each expert."""
    assert manifest.in_place is not None
    files, known = manifest.in_place.files, set(runs)
    return all(
        (files[run.file].file, run.tensor.offset_bytes, run.tensor.num_bytes, run.unit_bytes) in known
        for run in _expert_runs(manifest, manifest.in_place).values()
    )
