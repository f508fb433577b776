"""Measured runs as a picture, and the picture in docs/ as it follows from the recorded results."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from moeinf.bench.bench_plot import MeasuredRun, draw, runs_of
from moeinf.bench.rows import Row
from moeinf.errors import UsageError
from moeinf.terminal.traces.picture import check_new_picture

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'moeinf[plots]'")


def decoded(policy: str, experts: int, speed: float, *, cold: bool = False) -> Row:
    facts: Any = {"test": "tg64", "cold": cold, "policy": policy, "predictor": "none", "experts": experts}
    facts |= {
        "experts_total": 40,
        "parallel": 0,
        "median_ts": speed,
        "expert_hit_rate": 0.5,
        "peak_rss_bytes": 2_000_000_000,
    }
    row: Row = facts
    return row


def test_a_run_of_each_policy_is_a_line_of_warm_decoding() -> None:
    rows = [decoded("lru", 10, 3.0, cold=True), decoded("lru", 10, 4.0), decoded("next-use", 10, 5.0)]
    wanted = [MeasuredRun("lru, none", 2_000_000_000, 4.0, 0.5, 0.25)]
    assert runs_of(rows[:2]) == wanted
    assert [run.line for run in runs_of(rows)] == ["lru, none", "next-use, none"]
    assert runs_of(rows[:1])[0].tokens_per_s == 3.0  # a cold one, where there is no other


def test_the_same_runs_make_the_same_picture(tmp_path: Path) -> None:
    runs = [MeasuredRun("whole model", 10**9, 4.0, 0.5, None), MeasuredRun("whole model", 2 * 10**9, 8.0, None, 0.4)]
    for name in ("a.svg", "b.svg"):
        draw(runs, "title of it", tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert all(said in text for said in ("title of it", "whole model", "decode, tokens/s", "experts resident, %"))
    draw(runs, "title of it", tmp_path / "c.png", log=True)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_answers_side_by_side_have_a_panel_of_their_own(tmp_path: Path) -> None:
    run = MeasuredRun("whole model", 10**9, 4.0, 0.5, None)
    draw([run, MeasuredRun("whole model", 10**9, 9.0, 0.5, None, 4)], "title", tmp_path / "a.svg")
    assert "answers side by side" in (tmp_path / "a.svg").read_text()
    draw([run], "title", tmp_path / "b.svg")
    assert "answers side by side" not in (tmp_path / "b.svg").read_text()


def test_what_could_not_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "mine.svg").write_text("mine")
    for path, said in (("mine.svg", "is there already"), ("no/a.svg", "there is no folder"), ("a.pdf", "ends in .svg")):
        with pytest.raises(UsageError, match=said):
            check_new_picture(tmp_path / path)
    assert (tmp_path / "mine.svg").read_text() == "mine"


def test_the_recorded_results_say_whose_weights_and_routing_they_are_of() -> None:
    plots = importlib.import_module("benchmarks.plots")
    runs = plots.recorded()
    assert len(runs) >= 15 and all("weights" in run.line and "routing" in run.line for run in runs)
