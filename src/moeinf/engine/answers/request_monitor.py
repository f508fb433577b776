"""Watches one request: passes on what its caller wants to hear, and counts what it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from moeinf.engine.completion import GenerationStats, Hooks, PeakMemory
from moeinf.engine.disk_wait import DiskWait
from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.runner import ModelRunner
from moeinf.hardware import peak_rss_bytes
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.runtime.cache.stats import CacheStats, DecodeStats
from moeinf.runtime.decode_routing import DecodeRouting
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.sampling.loop import Timing
from moeinf.sampling.step_queue import Interrupted, Seat
from moeinf.traces.recorder import TraceRecorder
from moeinf.types import Phase, Profiler

TELL_S = 1.0  # between two words on how far a chunk of a prompt is


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told of every request, beside its caller. The recorder and the trace are told its routing, too."""

    recorder: RequestRecorder  # of what policies and predictors learn from the routing
    profiler: Profiler
    disk_wait: DiskWait
    notify: Callable[[str], None]  # told each line once
    trace: TraceRecorder | None = None
    routing: DecodeRouting | None = None  # None: of no answer is told what other caches would have hit


@dataclass(slots=True)
class _Chunk:
    """A chunk of a prompt on its way through the layers, of which is told while that takes long."""

    start: int
    end: int
    total: int
    num_layers: int
    told_s: float  # when somebody was told last
    layers: int = 0  # that have begun

    def done_behind_layer(self) -> int | None:
        """Where another layer begins: tokens that are done, in proportion; None where that was told a moment ago."""
        self.layers, now = self.layers + 1, time.perf_counter()
        if now - self.told_s < TELL_S or self.layers > self.num_layers:
            return None
        self.told_s = now
        return self.start + (self.end - self.start) * (self.layers - 1) // self.num_layers


class RequestMonitor:
    """moeinf.sampling.loop.Monitor of a request on an open model. It starts counting when it is made.

    What caches and clocks count of several requests side by side, each counts as its own. To observers they are one,
    but for the recorder, which keeps them apart.
    """

    def __init__(self, runner: ModelRunner, listeners: Listeners, hooks: Hooks, seat: Seat) -> None:
        self.timing = Timing()
        self._runner, self._listeners, self._hooks, self._seat = runner, listeners, hooks, seat
        self._prompt_is_read = False
        self._chunk: _Chunk | None = None  # of the prompt, that goes through the layers
        self._started_s = time.perf_counter()
        self._cache_before = runner.stats
        self._prefill: CacheStats | None = None
        self._laps_before: dict[str, float] = {}
        listeners.disk_wait.should_stop.append(hooks.should_stop)

    def check(self) -> None:
        if self._hooks.should_stop():
            raise Interrupted
        if self._chunk is not None and (done := self._chunk.done_behind_layer()) is not None:
            self._hooks.on_prefill(done, self._chunk.total)

    def reading(self, start: int, end: int, total: int) -> None:
        if not self._prompt_is_read:
            network = self._runner.network
            num_layers = 0 if isinstance(network, EncoderDecoder) else network.config.num_layers
            self._chunk = _Chunk(start, end, total, num_layers, time.perf_counter())

    def gives_way(self) -> bool:
        return self._hooks.gives_way()

    def begin(self, phase: Phase) -> None:
        self._listeners.recorder.begin_of(self._seat, phase)
        if phase == "decode" or self._seat.alone:
            for observer in self._runner.observers:
                if observer is not self._listeners.recorder:
                    observer.begin(phase)
        self._compare(phase)
        self._listeners.profiler.restart()
        if phase == "decode" and self._prefill is None:
            counted = self._runner.stats
            self._prefill, self._cache_before = counted.since(self._cache_before), counted
            self._laps_before = self._listeners.profiler.snapshot()

    def _compare(self, phase: Phase) -> None:
        """Keeps the routing of decode steps, as long as the request runs alone."""
        routing, runner = self._listeners.routing, self._runner
        if routing is None or isinstance(runner.plan, DevicePlan):
            return
        if not self._seat.alone:
            routing.give_up()
        elif phase == "decode" and self._prefill is None:
            routing.start(runner.tier)

    def prefilled(self, done: int, total: int) -> None:
        """Of an encoder-decoder model the encoder input is the prompt: what its decoder begins with is not reported."""
        self._chunk = None
        if not self._prompt_is_read:
            self._prompt_is_read = done == total
            self._hooks.on_prefill(done, total)

    def end(self, stats: GenerationStats) -> None:
        """Tells everybody that the request has ended, and writes what was counted into its stats."""
        listeners, runner = self._listeners, self._runner
        listeners.disk_wait.should_stop.remove(self._hooks.should_stop)
        if self._seat.alone:
            runner.tier.end_request()
        listeners.recorder.finish(self._seat)
        if listeners.trace is not None:
            listeners.trace.finish()
        self._count(stats)
        if notice := runner.reader.notice:  # a file system may refuse any block
            listeners.notify(notice)

    def _count(self, stats: GenerationStats) -> None:
        last, profiler = self._runner.stats.since(self._cache_before), self._listeners.profiler
        if self._prefill is None:
            stats.prefill_cache = last
        else:
            profiler.lap("other")
            stats.prefill_cache, stats.decode_cache = self._prefill, DecodeStats(**asdict(last))
            if self._listeners.routing is not None:
                self._listeners.routing.tell(stats.decode_cache, self._runner.tier)
            now = profiler.snapshot()
            stats.decode_laps = {name: now[name] - self._laps_before.get(name, 0.0) for name in now}
        stats.cached_tokens, stats.token_s = self.timing.cached_tokens, self.timing.token_s
        stats.cached_from = self.timing.cached_from
        stats.prompt_s = self.timing.encode_s + self.timing.prefill_s
        stats.total_s = stats.load_s + time.perf_counter() - self._started_s
        if runner_approx := self._runner.approx:
            stats.made.approx = str(runner_approx.within)
        stats.peak = PeakMemory(peak_rss_bytes(), self._runner.peak_device_bytes())
