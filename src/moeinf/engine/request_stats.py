"""Cache counters and times of one request, prefill and decode apart."""

from __future__ import annotations

from moeinf.engine.completion import GenerationStats
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.trace import Phase
from moeinf.types import Profiler


class Meter:
    """Starts with the request; told of its phases; `end` writes what was counted into its stats."""

    def __init__(self, tier: ExpertTier, profiler: Profiler) -> None:
        self._tier = tier
        self._profiler = profiler
        self._cache = tier.stats.snapshot()
        self._prefill: CacheStats | None = None
        self._lap_start: dict[str, float] = {}

    def begin(self, phase: Phase) -> None:
        self._profiler.restart()
        if phase == "decode" and self._prefill is None:
            self._prefill = self._tier.stats.since(self._cache)
            self._cache = self._tier.stats.snapshot()
            self._lap_start = self._profiler.snapshot()

    def end(self, stats: GenerationStats) -> None:
        last = self._tier.stats.since(self._cache)
        if self._prefill is None:
            stats.prefill_cache = last
            return
        self._profiler.lap("other")
        stats.prefill_cache, stats.decode_cache = self._prefill, last
        now = self._profiler.snapshot()
        stats.decode_laps = {name: now[name] - self._lap_start.get(name, 0.0) for name in now}
