"""What `simulate` is told, and what it prints."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.bench.simulation.simulate import Simulated, simulate
from moeinf.bench.simulation.simulation_plan import Plan, plan_of
from moeinf.bench.simulation.simulation_plot import write_plot
from moeinf.bench.simulation.simulation_report import as_json, tables
from moeinf.config.simulate_options import SimulateOptions
from moeinf.errors import UsageError
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.runtime.policy.predictors import PREDICTORS
from moeinf.terminal.traces.picture import check_picture
from moeinf.traces.folder import TraceFacts

TIMED: dict[str, Any] = {"link": 2.0, "compute": 500.0, "expert_bytes": "2MB"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    experts = np.random.default_rng(0).random((60, 3, 8)).argsort(axis=2)[:, :, :2]
    np.savez(tmp_path / "routing.npz", experts=experts, offsets=np.array([0, 30, 60]), n_experts=8, top_k=2)
    return tmp_path


def simulated(trace: Path, **options: Any) -> tuple[list[Simulated], Plan]:
    plan = plan_of(SimulateOptions(**options))
    return simulate([trace], plan, lambda text: None), plan


def test_policies_are_compared_at_each_size_and_none_beats_the_bound(trace: Path) -> None:
    lines = tables(*simulated(trace, cache="25,50%"))
    assert "60 tokens, 3 layers x 8 experts, top-2" in lines[0]
    rates = {line.split()[0]: [float(cell.rstrip("%")) for cell in line.split()[1:]] for line in lines[5:]}
    assert set(rates) == {*POLICIES, "belady"}
    assert all(rates["belady"][size] >= rate[size] for rate in rates.values() for size in (0, 1))
    some = tables(*simulated(trace, cache="25", policy="lru,lfu", max_tokens=10))
    assert [line.split()[0] for line in some[5:]] == ["lru", "lfu"] and "10 tokens" in some[0]


def test_steps_of_several_rows_are_told_by_what_a_token_reads(trace: Path) -> None:
    found, plan = simulated(trace, cache="25,50", policy="lru,belady", parallel="1,2", max_tokens=40)
    lines = [" ".join(line.split()) for line in tables(found, plan)]
    assert lines[0] == "trace: 40 tokens, 3 layers x 8 experts, top-2".replace("trace", trace.name)
    by_row = {line.rsplit(" request", 1)[0]: line for line in lines}
    for policy in ("lru", "belady"):
        for places in (1, 2):
            (*cells,) = [cell for cell in found[0].of(policy) if cell.form.parallel == places]
            assert [cell.main.tokens for cell in cells] == [40, 40]
            texts = [f"{cell.reads:.1f} ({100 * cell.hit_rate:.1f}%)" for cell in cells]
            assert by_row[f"{policy} {places}"].endswith(" ".join(texts))
    assert by_row["independent 1"].endswith("4.5 3.0"), "of six, what is not resident"
    assert by_row["independent 2"].endswith(f"{0.75 * 5.25:.1f} {0.5 * 5.25:.1f}")
    assert lines[-2] == "1 request 6.0 6.0" and lines[-1].startswith("2 requests ") and lines[-1].endswith(" 5.2")
    told = json.loads(as_json(found, plan))[0]["cells"]
    assert [(cell["parallel"], cell["draft"]) for cell in told[:4]] == [(1, 0)] * 4
    assert told[-1]["parallel"] == 2 and told[-1]["reads_a_token"] == pytest.approx(found[0].cells[-1].reads)


def test_rejected_drafts_are_rows_and_no_tokens(trace: Path) -> None:
    found, plan = simulated(trace, cache="50", policy="lru", draft="2", acceptance=0.0)
    (cell,) = found[0].cells
    (steps,) = found[0].steps
    assert cell.main.tokens == found[0].tokens == 60 < steps.trace.num_tokens
    assert cell.main.stats.activations == 6 * steps.trace.num_tokens
    assert "1 request + 2 drafts, 0 right" in "\n".join(tables(found, plan))
    timed, plan = simulated(trace, cache="50", policy="lru", parallel="1,2", **TIMED)
    alone, together = timed[0].cells
    assert together.main.seconds < alone.main.seconds and together.main.tokens == alone.main.tokens
    assert "rows of a step: 2 requests" in "\n".join(tables(timed, plan))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parallel": "two"}, r"--parallel 'two' is no list of whole numbers; write for example 1,2,4"),
        ({"parallel": "0"}, r"--parallel is a number of requests from 1 on, not 0"),
        ({"parallel": "3"}, r"has 2 requests, and --parallel asks for 3 side by side"),
        ({"draft": "2"}, r"--draft asks how often drafted tokens are right: give --acceptance"),
        ({"acceptance": 0.5}, r"--acceptance is of drafted tokens: give --draft, too"),
        ({"draft": "2", "acceptance": 2.0}, r"--acceptance is a share from 0 to 1, not 2"),
    ],
)
def test_steps_that_cannot_be_are_refused(trace: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulated(trace, **options)


def test_a_timed_machine_has_a_row_for_each_policy_and_predictor(trace: Path) -> None:
    found, plan = simulated(trace, cache="50", predictor="all", lookahead_recall=0.8, **TIMED)
    predictors = [*PREDICTORS, "look-ahead+eamc", "look-ahead+frequency"]
    rows = [(cell.policy, cell.predictor) for cell in found[0].cells]
    cached = [(policy, predictor) for policy in (*POLICIES, "belady") for predictor in predictors]
    assert rows == [*cached, ("no-cache", "none"), ("whole-layers", "none")]
    assert all(cell.main.token_s >= 3 * 500e-6 for cell in found[0].cells)
    assert set(found[0].quality) == set(predictors) - {"none"}
    text = "\n".join(tables(found, plan))
    assert "An expert is read in 1 ms; a layer takes 0.5 ms" in text and "ms/prompt" not in text
    prefilled = "\n".join(tables(*simulated(trace, cache="50", policy="lru", prefill=9, **TIMED)))
    assert "ms/prompt token" in prefilled


def test_what_is_read_ahead_without_admission_has_rows_beside_the_others(trace: Path) -> None:
    found, plan = simulated(trace, cache="50", policy="lru", predictor="none,popularity", admission="all", **TIMED)
    cells = found[0].cells
    assert [(cell.predictor, cell.admission) for cell in cells] == [
        ("none", "measured"),
        ("popularity", "measured"),
        ("popularity", "none"),
    ]
    nothing, measured, everything = (cell.main.stats.prefetches for cell in cells)
    assert nothing == 0 <= measured < everything
    assert "popularity, admission none" in "\n".join(tables(found, plan))
    assert [cell["admission"] for cell in json.loads(as_json(found, plan))[0]["cells"]] == ["measured"] * 2 + ["none"]


def test_all_leaves_out_what_needs_guesses_that_a_trace_has_not(trace: Path) -> None:
    found, _ = simulated(trace, cache="50", policy="lru", predictor="all", **TIMED)
    assert [cell.predictor for cell in found[0].cells] == [name for name in PREDICTORS if name != "look-ahead"]
    for name in ("look-ahead", "look-ahead+eamc"):
        with pytest.raises(UsageError, match=r"has no guesses of look-ahead: give --lookahead-recall"):
            simulated(trace, predictor=name)


def test_json_has_every_figure(trace: Path) -> None:
    found, plan = simulated(trace, cache="25,50", policy="lru", predictor="none,popularity", prefill=5, **TIMED)
    (told,) = json.loads(as_json(found, plan))
    assert (told["tokens"], told["layers"], told["experts"], told["top_k"]) == (60, 3, 8, 2)
    assert [cell["slots"] for cell in told["cells"]] == [6, 12, 6, 12] and told["read_s"] == 1e-3
    for cell, each in zip(told["cells"], found[0].cells, strict=True):
        decode = cell["phases"]["decode"]
        assert decode["tokens"] == 50 and decode["hits"] + decode["misses"] == 50 * 3 * 2
        assert decode["seconds"] == each.phases["decode"].seconds > decode["stall_s"]
    assert told["predictions"]["popularity"][0]["distance"] == 1


def test_slots_have_the_sizes_of_experts_that_the_trace_or_an_option_tells(trace: Path) -> None:
    options: dict[str, Any] = {"cache": "50", "policy": "lru,belady"}
    (equal,), _ = simulated(trace, **options)
    (timed,), _ = simulated(trace, **options, **TIMED)
    asked, plan = simulated(trace, expert_bytes="2MB,4MB,2MB", **options)
    assert "x 8 experts of 2 sizes, top-2" in tables(asked, plan)[0]
    with pytest.raises(UsageError, match=r"gives 2 sizes, and .* has 3 layers: give one for each, or one for all"):
        simulated(trace, expert_bytes="2MB,4MB")
    facts = TraceFacts("m", equal.trace.shape, expert_bytes=(2_000_000, 4_000_000, 2_000_000))
    (trace / "trace.json").write_bytes(facts.dumps())
    (told,), _ = simulated(trace, **options)
    assert told.cells == asked[0].cells != equal.cells
    assert simulated(trace, **options, **TIMED)[0][0].cells == timed.cells, "one size for all was asked for"


def test_the_same_options_give_the_same_figures(trace: Path) -> None:
    options: dict[str, Any] = {"policy": "next-use", "predictor": "look-ahead", "lookahead_recall": 0.7, **TIMED}
    first, again = (as_json(*simulated(trace, **options)) for _ in range(2))
    assert first == again != as_json(*simulated(trace, seed=1, **options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache": "many"}, "not a list of percents"),
        ({"cache": "0"}, "not a list of percents"),
        ({"cache": "nan"}, "not a list of percents"),
        ({"policy": "lru,best"}, "unknown policy 'best'; known: all, lru"),
        ({"policy": "no-cache"}, "no-cache keeps no cache, and differs in time alone: give --link"),
        ({"predictor": "oracle"}, "unknown --predictor 'oracle'"),
        ({"admission": "none"}, "--admission none is of what is read ahead, and nothing is; name a --predictor"),
        (TIMED | {"admission": "all"}, "is of what is read ahead, and nothing is"),
        (TIMED | {"predictor": "eamc", "admission": "some"}, "unknown --admission 'some'; known: all, measured, none"),
        ({"link": 2.0}, "give all three, or none"),
        (TIMED | {"expert_bytes": "40%"}, "no number of bytes"),
        (TIMED | {"expert_bytes": "much"}, "is not a size"),
        ({"expert_bytes": "2MB"}, "give all three, or none"),
        ({"expert_bytes": "2MB,auto"}, "no number of bytes"),
        (TIMED | {"link": 0.0}, "positive number of GB/s"),
        (TIMED | {"compute": -1.0}, "number of microseconds"),
        (TIMED | {"compute": float("nan")}, "number of microseconds"),
        ({"prefill": -1}, "--prefill must be at least 0"),
        ({"max_tokens": 0}, "--max-tokens must be at least 1"),
        ({"lookahead_precision": 0.5}, "--lookahead-recall is given; give it as well"),
        ({"lookahead_recall": 1.5}, "--lookahead-recall is a share above 0"),
        ({"lookahead_recall": 0.5, "lookahead_precision": 0.0}, "--lookahead-precision is a share above 0"),
        ({"lookahead_recall": 0.5, "lookahead_confidence": 0.5}, "--lookahead-confidence is from 1 to 1000"),
        ({"plot": "/nowhere/at/all.svg"}, "there is no folder /nowhere/at"),
    ],
)
def test_what_cannot_be_is_refused_before_a_trace_is_read(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_of(SimulateOptions(**options))


def test_a_plot_overwrites_nothing(tmp_path: Path) -> None:
    there = tmp_path / "mine.svg"
    there.write_text("mine")
    with pytest.raises(UsageError, match="is there already; name a new file"):
        plan_of(SimulateOptions(plot=str(there)))
    assert there.read_text() == "mine"


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'moeinf\[plots\]'"):
        check_picture(Path("new.svg"))
    with pytest.raises(UsageError, match=r"name a file that ends in \.svg or \.png"):
        check_picture(Path("new.pdf"))


@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize("timing", [{}, TIMED])
def test_a_plot_is_drawn(trace: Path, form: str, timing: dict[str, Any]) -> None:
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        pytest.skip("matplotlib is not installed: pip install 'moeinf[plots]'")
    path = trace / f"plot.{form}"
    found, plan = simulated(trace, policy="lru,next-use", plot=str(path), **timing)
    write_plot(found, plan, path)
    assert path.read_bytes().startswith(b"\x89PNG" if form == "png" else b"<?xml")
