"""The figures of an answer: each says of what it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from moeinf.engine.completion import GenerationStats, PeakMemory
from moeinf.terminal.answer_stats import cache_lines, stats_lines
from moeinf.types import MoeShape


def test_the_peak_is_told_to_be_that_of_the_process_beside_what_was_planned() -> None:
    stats = GenerationStats(peak=PeakMemory(80 << 20))
    model: Any = SimpleNamespace(
        plan=SimpleNamespace(context=2048),
        last=SimpleNamespace(stats=stats),
        tier=SimpleNamespace(num_experts=3),
        manifest=SimpleNamespace(moe=MoeShape(1, 4, 2)),
        describe=lambda: "demo in 12 MiB RAM",
    )
    for lines in (cache_lines(model)[1:], stats_lines(stats, model)):
        (line,) = (line for line in lines if "RAM" in line)
        assert line.split() == ["process", "memory:", "RAM", "80.0", "MiB", "peak"]
