"""Watches one request: passes on what its caller wants to hear, and counts what it does."""

from __future__ import annotations

import time

from moeinf.engine.completion import GenerationStats, Hooks
from moeinf.engine.runner import ModelRunner
from moeinf.hardware import peak_rss_bytes
from moeinf.runtime.cache.stats import CacheStats
from moeinf.sampling.loop import Interrupted, Timing
from moeinf.types import Phase, Profiler


class RequestMonitor:
    """moeinf.sampling.loop.Monitor of a request on an open model. It starts counting when it is made."""

    def __init__(self, runner: ModelRunner, profiler: Profiler, hooks: Hooks) -> None:
        self.timing = Timing()
        self._runner, self._profiler, self._hooks = runner, profiler, hooks
        self._prompt_is_read = False
        self._started_s = time.perf_counter()
        self._cache_before = runner.stats
        self._prefill: CacheStats | None = None
        self._laps_before: dict[str, float] = {}

    def check(self) -> None:
        if self._hooks.should_stop():
            raise Interrupted

    def begin(self, phase: Phase) -> None:
        for observer in self._runner.observers:
            observer.begin(phase)
        self._profiler.restart()
        if phase == "decode" and self._prefill is None:
            counted = self._runner.stats
            self._prefill, self._cache_before = counted.since(self._cache_before), counted
            self._laps_before = self._profiler.snapshot()

    def prefilled(self, done: int, total: int) -> None:
        """Of an encoder-decoder model the encoder input is the prompt: what its decoder begins with is not reported."""
        if not self._prompt_is_read:
            self._prompt_is_read = done == total
            self._hooks.on_prefill(done, total)

    def end(self, stats: GenerationStats) -> None:
        """Writes what was counted into the stats of the request."""
        last = self._runner.stats.since(self._cache_before)
        if self._prefill is None:
            stats.prefill_cache = last
        else:
            self._profiler.lap("other")
            stats.prefill_cache, stats.decode_cache = self._prefill, last
            now = self._profiler.snapshot()
            stats.decode_laps = {name: now[name] - self._laps_before.get(name, 0.0) for name in now}
        stats.cached_tokens, stats.token_s = self.timing.cached_tokens, self.timing.token_s
        stats.cached_from = self.timing.cached_from
        stats.prompt_s = self.timing.encode_s + self.timing.prefill_s
        stats.total_s = stats.load_s + time.perf_counter() - self._started_s
        stats.peak_rss_bytes = peak_rss_bytes()
        stats.peak_vram_bytes = self._runner.peak_device_bytes()
