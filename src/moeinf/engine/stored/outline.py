"""A model as its headers tell of it, without weights: what a memory plan and a forecast go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moeinf.engine.memory.footprint import Footprint, device_footprint, footprint_of
from moeinf.engine.stored.facts import config, family_as_stored, json_file
from moeinf.engine.weights.dense_file import DenseSizes
from moeinf.engine.weights.device_form import HeldDense
from moeinf.engine.weights.placed_dense import PlacedSizes, open_dense
from moeinf.models.family import AnyFamily, family_of
from moeinf.store.library import StoredModel
from moeinf.store.manifest import MANIFEST_FILE, Manifest
from moeinf.types import JsonMapping, TensorSpec


@dataclass(frozen=True, slots=True)
class Outline:
    """The sizes of a model that need not be there."""

    manifest: Manifest
    footprint: Footprint  # on a CPU
    held: HeldDense  # of the dense weights, those that are held in memory

    @property
    def device_footprint(self) -> Footprint:
        """The same on a GPU, where weights may have another form."""
        return device_footprint(self.footprint, self.manifest, self.held)


def outline_of(stored: StoredModel) -> Outline:
    """The outline of a stored model, with the options that its checkpoint sets. Raises StoreError."""
    config_json = config(stored)
    family = family_as_stored(stored, config_json)
    held = open_dense(stored, family.tensors, ())  # only its sizes are asked for
    generation = json_file(stored, "generation_config.json")
    return _outline(family, config_json, generation, stored.manifest, held)


def outline_of_headers(
    config_json: JsonMapping, generation: JsonMapping, manifest: Manifest, dense: Sequence[TensorSpec]
) -> Outline:
    """The outline of a model that a pull would store. dense: of its dense file, none where the weights are in place."""
    family, where = family_of(dict(config_json)), Path(MANIFEST_FILE)
    plan = family.tensors
    held = PlacedSizes(manifest.in_place, plan, where) if manifest.in_place else DenseSizes(dense, plan, where)
    return _outline(family, config_json, generation, manifest, held)


def _outline(
    family: AnyFamily, config_json: JsonMapping, generation: JsonMapping, manifest: Manifest, held: HeldDense
) -> Outline:
    beams = 1
    if family.encoder_input is not None:
        from moeinf.sampling.beam_search import num_beams_asked  # loads numpy, which most models do without

        beams = num_beams_asked(dict(generation or config_json))
    return Outline(
        manifest, footprint_of(manifest, held.memory_bytes, family.workspace, beams, family.cache_bytes), held
    )
