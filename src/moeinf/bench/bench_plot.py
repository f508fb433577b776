"""Measured runs as a picture: the speed by the memory that it took, and the hit rate by the resident share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeinf.bench.rows import Row
from moeinf.terminal.traces.picture import save_picture


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Decoding with one amount of memory. Where something is None, it is not drawn."""

    line: str  # what it is a point of
    memory_bytes: int
    tokens_per_s: float
    hit_rate: float | None  # 0 to 1
    resident: float | None  # share of all experts
    parallel: int = 0  # answers side by side; 0: one after the other


def runs_of(rows: Sequence[Row]) -> list[MeasuredRun]:
    """The decode rows of a benchmark, warm ones where there are any; a line a policy and predictor."""
    decoded = [row for row in rows if row["test"].startswith("tg")]
    warm = [row for row in decoded if not row["cold"]]
    return [
        MeasuredRun(
            f"{row['policy']}, {row['predictor']}",
            row["peak_rss_bytes"],
            row["median_ts"],
            row["expert_hit_rate"],
            row["experts"] / row["experts_total"],
            row["parallel"],
        )
        for row in warm or decoded
    ]


def draw(runs: Sequence[MeasuredRun], title: str, path: Path, *, log: bool = False) -> None:
    """Draws the runs into a file whose name says the form; the same runs make the same bytes.

    log: speeds on a scale of powers of ten. Raises UsageError where the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    several = any(run.parallel for run in runs)
    speed, hits, *beside = figure.subplots(1, 3 if several else 2)
    for line in dict.fromkeys(run.line for run in runs):
        own = [run for run in runs if run.line == line and not run.parallel]
        for panel in beside:
            _line(
                panel, line, [(run.parallel, 1, run.tokens_per_s) for run in runs if run.line == line and run.parallel]
            )
            _label(panel, "answers side by side", "decode of all together, tokens/s")
            panel.set_ylim(bottom=0)
        _line(speed, line, [(run.memory_bytes, 1e-9, run.tokens_per_s) for run in own])
        _line(hits, line, [(run.resident, 100, run.hit_rate and 100 * run.hit_rate) for run in own])
    _label(speed, "memory, GB", "decode, tokens/s")
    _label(hits, "experts resident, %", "hits, %")
    hits.set_ylim(0, 102)
    if log:
        speed.set_yscale("log")
    else:
        speed.set_ylim(bottom=0)
    if speed.lines:
        figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    save_picture(figure, path)


def _line(panel: Any, name: str, points: Sequence[tuple[float | None, float, float | None]]) -> None:
    """Points (x, its unit, y) from left to right; those of which something is not known are left out."""
    known = sorted((x * unit, y) for x, unit, y in points if x is not None and y is not None)
    if known:
        panel.plot(*zip(*known, strict=True), marker="o", label=name)


def _label(panel: Any, x: str, y: str) -> None:
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_xlim(left=0)
    panel.grid(alpha=0.3)
