"""Replays recorded routing through the classes that run live; only the reader is another: it has a clock, no disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.bench.simulated_link import Clock, SimulatedLink
from moeinf.bench.traces import Trace, visits
from moeinf.errors import UsageError
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.idle import IdleWindow
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.eviction import EvictionPolicy
from moeinf.runtime.policy.predictors import Predictor
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.runtime.prefetch import Prefetcher
from moeinf.types import IntArray, MoeShape, Profiler

_ONE_BYTE: Final = 1  # of an expert: the replay counts experts, so its bytes are experts


@dataclass(frozen=True, slots=True)
class Timing:
    """What a simulated machine takes for the read of an expert, and for a layer beside its reads."""

    read_s: float = 0.0
    layer_s: float = 0.0


class SimulatedRun:
    """A tier of `num_slots` experts, with its own clock and link."""

    def __init__(
        self, shape: MoeShape, num_slots: int, policy: EvictionPolicy, predictor: Predictor | None, timing: Timing
    ) -> None:
        """Raises UsageError for too few slots. Without a predictor nothing is prefetched."""
        if num_slots < shape.top_k:
            raise UsageError(f"{num_slots} slots cannot hold the {shape.top_k} experts of one token")
        self._clock = Clock()
        self._layer_s = timing.layer_s
        link = SimulatedLink(self._clock, timing.read_s)
        cache = ExpertCache(shape, _ONE_BYTE, SlotRegion(None, 0, num_slots), policy)
        errors = ReadErrors([], shape.num_experts)
        self.tier = ExpertTier(cache, Loader(cache, link), errors, Profiler(self._clock), IdleWindow(self._clock))
        self._prefetcher = None
        if predictor is not None:
            self._prefetcher = Prefetcher(self.tier, predictor, link, shape, _ONE_BYTE)

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        """What runtime/experts.py does after policy and predictor were told, but for the products."""
        with self.tier.visit(layer, experts, counts, num_tokens) as visit:
            if self._prefetcher is not None:
                self._prefetcher.after_routing(visit)
            for _ in visit.arrivals():
                pass
        self._clock.now += self._layer_s


def replay(
    trace: Trace,
    num_slots: Sequence[int],
    policy: EvictionPolicy,
    recorder: RequestRecorder | None = None,
    predictor: Predictor | None = None,
    timing: Timing = Timing(),
    prefill_tokens: int = 0,
) -> list[CacheStats]:
    """What tiers of these sizes do under `policy`, all in one pass; no tier changes what the policy sees.

    The bytes of the stats count experts. The first `prefill_tokens` of a request go through together.
    """
    runs = [SimulatedRun(trace.shape, slots, policy, predictor, timing) for slots in num_slots]
    observers = [observer for observer in (recorder, policy, predictor) if observer is not None]
    for begins, layer, ids in visits(trace, prefill_tokens):
        if begins:
            for observer in observers:
                observer.begin(begins)
        for observer in observers:
            observer.observe(layer, ids)
        experts, counts = np.unique(ids, return_counts=True)
        for run in runs:
            run.visit(layer, experts, counts, len(ids))
    return [run.tier.stats for run in runs]
