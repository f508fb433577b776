"""What a model and a request tell their callers, and how often."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from moeinf.engine.answers.request_monitor import Listeners, RequestMonitor
from moeinf.engine.completion import GenerationStats, Hooks
from moeinf.engine.disk_wait import DiskWait
from moeinf.engine.reporting import Reporting
from moeinf.runtime.cache.stats import CacheStats
from moeinf.sampling.step_queue import Interrupted, Steps
from moeinf.types import Phase, Profiler


def test_each_notice_is_passed_on_once() -> None:
    said: list[str] = []
    reporting = Reporting(said.append).once()
    for line in ("a is not done", "b is not done", "a is not done"):
        reporting.notify(line)
    assert said == ["a is not done", "b is not done"]


def test_without_a_callback_a_notice_is_a_warning_of_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="moeinf"):
        Reporting().notify("running on the CPU")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("moeinf", "running on the CPU")]


class Observer:
    def __init__(self) -> None:
        self.phases: list[str] = []

    def begin(self, phase: str) -> None:
        self.phases.append(phase)

    def begin_of(self, name: object, phase: Phase) -> None:
        self.begin(phase)

    def finish(self, name: object) -> None:
        self.phases.append("finished")


class Runner:
    """Of moeinf.engine.runner.ModelRunner what a monitor looks at."""

    approx = None

    def __init__(self, stats: CacheStats, observer: Observer) -> None:
        self._stats, self.observers = stats, [observer]
        self.tier, self.reader = SimpleNamespace(end_request=lambda: None), SimpleNamespace(notice="it is slow")

    @property
    def stats(self) -> CacheStats:
        return self._stats.snapshot()

    def peak_device_bytes(self) -> int:
        return 3


def monitor(hooks: Hooks, stats: CacheStats, observer: Observer) -> RequestMonitor:
    runner: Any = Runner(stats, observer)
    recorder: Any = observer
    listeners = Listeners(recorder, Profiler(), DiskWait(lambda line: None), observer.phases.append)
    return RequestMonitor(runner, listeners, hooks, Steps(runner).seat())


def test_the_counts_of_prefill_and_decode_are_kept_apart() -> None:
    stats, observer, figures = CacheStats(hits=10), Observer(), GenerationStats()
    request = monitor(Hooks(), stats, observer)
    request.begin("prefill")
    stats.hits += 4
    request.begin("decode")
    stats.misses += 5
    request.end(figures)
    assert observer.phases == ["prefill", "decode", "finished", "it is slow"]
    assert (figures.prefill_cache.hits, figures.prefill_cache.misses) == (4, 0)
    assert (figures.decode_cache.hits, figures.decode_cache.misses) == (0, 5)
    assert figures.peak.vram == 3


def test_what_the_decoder_of_a_translator_begins_with_is_no_part_of_the_prompt() -> None:
    told: list[tuple[int, int]] = []
    request = monitor(Hooks(on_prefill=lambda done, total: told.append((done, total))), CacheStats(), Observer())
    for done, total in ((4, 9), (9, 9), (1, 1)):
        request.prefilled(done, total)
    assert told == [(4, 9), (9, 9)]


def test_a_request_that_is_to_stop_is_interrupted_between_layers() -> None:
    request = monitor(Hooks(should_stop=lambda: True), CacheStats(), Observer())
    with pytest.raises(Interrupted):
        request.check()


def test_a_chunk_that_takes_long_is_told_of_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    told, clock = list[tuple[int, int]](), iter([0.0, 0.5, 1.0, 1.5, 2.5, 9.0])
    request = monitor(Hooks(on_prefill=lambda done, total: told.append((done, total))), CacheStats(), Observer())
    request._runner.network = SimpleNamespace(config=SimpleNamespace(num_layers=4))  # type: ignore[assignment]
    monkeypatch.setattr("moeinf.engine.answers.request_monitor.time.perf_counter", lambda: next(clock))
    request.check()
    assert not told, "nothing is read yet"
    request.reading(100, 500, 1000)
    for _ in range(5):  # the last time behind all layers, of a network that asks then, too
        request.check()
    assert told == [(200, 1000), (400, 1000)]
    request.prefilled(500, 1000)
    request.check()
    assert told[2:] == [(500, 1000)]
