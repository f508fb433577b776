"""What is stored of a model, held against the family that it is read as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeinf.config import RuntimeConfig
from moeinf.engine.reporting import Notify
from moeinf.engine.stored.facts import config as config_of
from moeinf.engine.stored.facts import family_as_stored
from moeinf.engine.stored.other_disks import other_disks
from moeinf.engine.weights.dense_file import DenseFile
from moeinf.engine.weights.expert_files import expert_sums
from moeinf.engine.weights.placed_dense import PlacedDense, open_dense
from moeinf.errors import StoreError, UsageError
from moeinf.models.family import AnyFamily
from moeinf.runtime.io.reader_protocol import NO_OTHERS, OtherDisks
from moeinf.store.library import StoredModel
from moeinf.store.manifest import Manifest
from moeinf.store.sums.checksums import sums_of
from moeinf.types import JsonObject, ModelInfo, SumRun, TensorPlan


@dataclass(frozen=True, slots=True)
class Weights:
    """What is stored of a model, and the family that it is read as."""

    stored: StoredModel
    family: AnyFamily
    config_json: JsonObject
    dense: DenseFile | PlacedDense
    expert_sums: Sequence[SumRun] = ()  # checksums of the experts, where the store has them
    sums: Sequence[SumRun] = ()  # those of all files
    others: OtherDisks = NO_OTHERS  # that the experts are read from as well

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest


def read_weights(stored: StoredModel, config: RuntimeConfig, notify: Notify) -> Weights:
    """Reads config.json and the header of the dense weights, which the manifest and the family are held against.

    Raises StoreError where they disagree, UsageError where --verify-reads asks for checksums that there are not.
    """
    config_json = config_of(stored)
    family = family_as_stored(stored, config_json)
    plan = family.tensors
    _compare(stored, family.info(stored.manifest.info.dtype), plan)
    sums, notice = sums_of(stored)
    if notice and config.reading.verify_reads:
        raise UsageError(f"--verify-reads: {notice}")
    if notice:
        notify(notice)
    strangers = stored.manifest.scales.dense.keys() - {*plan.matrices, *(plan.head or ())[:1]}
    if strangers:
        raise StoreError(
            f"{stored.path / 'manifest.json'} scales {min(strangers)}, which is no matrix; {stored.remedy}"
        )
    dense = open_dense(stored, plan, sums, always=config.reading.verify_reads)
    others = other_disks(stored, config, notify)
    return Weights(stored, family, config_json, dense, expert_sums(stored.manifest, sums), sums, others)


def _compare(stored: StoredModel, info: ModelInfo, plan: TensorPlan) -> None:
    """Raises StoreError where the manifest speaks of another model."""
    manifest = stored.manifest
    pairs = [
        (name, getattr(info, name), getattr(manifest.info, name))
        for name in ("hidden_size", "num_layers", "vocab_size")
    ]
    pairs += [
        (f"experts.{name}", getattr(plan.moe, name), getattr(manifest.moe, name))
        for name in ("num_layers", "num_experts", "top_k", "counts")
    ]
    for name, found, wanted in pairs:
        if found != wanted:
            path = stored.path / "config.json"
            raise StoreError(f"{path}: {name} is {found}, in the manifest {wanted}; {stored.remedy}")
