"""What every way of running a model is put together from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.dense_weights import DenseFile
from moeinf.engine.memory_plan import Demands
from moeinf.hardware import Machine
from moeinf.models import Architecture
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import Observer
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.predictors import make_predictor
from moeinf.runtime.prefetch import Link, Prefetcher
from moeinf.store.library import StoredModel
from moeinf.store.manifest import Manifest
from moeinf.types import ExpertForm, ExpertLayout, OnWait, Profiler, Prompting, SumRun, Work

Progress = Callable[[int, int], None]  # done and in all, of bytes or of tokens


def no_progress(done: int, total: int) -> None:
    pass


@dataclass(slots=True)
class ModelParts:
    stored: StoredModel
    config: RuntimeConfig
    machine: Machine
    family: Architecture
    config_json: dict[str, Any]
    form: ExpertForm  # of the family's tensor plan
    work: Work  # of the same
    dense: DenseFile
    kernels: Kernels  # of the CPU
    collection: ActivationCollection
    observers: list[Observer]  # told every routing, wherever experts lie
    profiler: Profiler
    notices: list[str]  # each fallback, said once; of the model, and added to while it runs
    progress: Progress  # of bytes that are read
    on_wait: OnWait | None = None  # while a read is waited for
    pin_progress: Progress = no_progress  # of host memory that is pinned for a GPU
    prompting: Prompting | None = None  # of an encoder-decoder model
    num_beams: int = 1  # that are decoded side by side
    preload: bool = True  # read every expert where all fit; else the first request finds an empty cache
    shard_sums: Sequence[SumRun] = ()  # of every expert, where the store has them

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest

    @property
    def demands(self) -> Demands:
        """What this run demands of memory."""
        return demands_of(self.manifest, self.dense.memory_bytes, self.work, self.num_beams)

    @property
    def encoder_layers(self) -> int:
        """How many layers of experts, the first ones, only a source visits."""
        return self.prompting.encoder_layers if self.prompting else 0


def demands_of(manifest: Manifest, dense_bytes: int, work: Work, num_beams: int) -> Demands:
    """What memory is planned by. dense_bytes: of the dense weights that are held in memory.

    Of an encoder-decoder's keys and values, all beams share the source's half; one layer's more serve to move beams.
    """
    info = manifest.info
    half = info.kv_bytes_per_token // 2
    moved = 2 * half * num_beams // info.num_layers if num_beams > 1 else 0
    info = replace(info, kv_bytes_per_token=info.kv_bytes_per_token + half * (num_beams - 1) + moved)
    return Demands(info, manifest.moe, manifest.layout, dense_bytes, work)


def prefetcher_of(
    parts: ModelParts, tier: ExpertTier, link: Link, observers: list[Observer], *, fits: bool
) -> Prefetcher | None:
    """The prefetcher that the configuration asks for; its predictor joins the observers.

    None where every expert fits: nothing needs to be predicted. Raises UsageError for an unknown predictor.
    """
    predictor = make_predictor(parts.config.predictor, parts.manifest.moe, parts.collection)
    if fits or not parts.config.prefetch:
        return None
    observers.append(predictor)
    return Prefetcher(
        tier, predictor, link, parts.manifest.moe, parts.manifest.layout.stride_bytes, parts.encoder_layers
    )


def expert_parts(layout: ExpertLayout) -> dict[str, tuple[str, int, int, int]]:
    """(format, rows, cols, offset in the block) by name, as ExpertKernel takes them; a bias has one column."""
    return {t.name: (t.dtype, t.shape[0], math.prod(t.shape[1:]), t.offset_bytes) for t in layout.tensors}
