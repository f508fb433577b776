"""`bench --policy all --predictor all`: which configurations run, and what is said of them."""

from __future__ import annotations

import io
from collections import Counter

import pytest

from moeinf.bench.comparison import compare, comparison_text, configurations
from moeinf.bench.comparison_view import DrawnTable, Lines
from moeinf.bench.live_bench import Workload, run_bench
from moeinf.config import RuntimeConfig
from moeinf.errors import UsageError
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.runtime.policy.predictors import PREDICTORS
from moeinf.store.library import StoredModel


def names(configs: list[RuntimeConfig]) -> list[tuple[str, str]]:
    return [(config.experts.policy, config.experts.predictor) for config in configs]


def test_every_policy_runs_with_every_predictor() -> None:
    configured = RuntimeConfig.of(policy="lru", predictor="eamc")
    assert names(configurations(configured, None, None)) == [("lru", "eamc")]
    assert names(configurations(configured, "lfu,arc", None)) == [("lfu", "eamc"), ("arc", "eamc")]
    everything = names(configurations(configured, "all", "all"))
    assert set(everything) == {(policy, predictor) for policy in POLICIES for predictor in PREDICTORS}
    assert len(everything) == len(POLICIES) * len(PREDICTORS)
    assert names(configurations(configured, None, "look-ahead+eamc,none,none")) == [
        ("lru", "look-ahead+eamc"),
        ("lru", "none"),
    ]


@pytest.mark.parametrize(
    ("names", "prefetch", "fault"),
    [
        (("lru,mru", None, None), True, "unknown --policy 'mru'"),
        ((None, "eamc,oracle", None), True, "unknown --predictor 'oracle'"),
        (("", None, None), True, "unknown --policy ''"),
        ((None, "all", None), False, "means nothing with --no-prefetch"),
        ((None, "eamc", "some"), True, "unknown --admission 'some'; known: all, measured, none"),
        ((None, "none", "none"), True, "--admission none is of what is read ahead, and nothing is"),
        ((None, None, "measured"), False, "--admission measured is of what is read ahead, and nothing is"),
    ],
)
def test_what_is_no_policy_predictor_or_admission_is_refused(
    names: tuple[str | None, str | None, str | None], prefetch: bool, fault: str
) -> None:
    with pytest.raises(UsageError, match=fault):
        configurations(RuntimeConfig.of(prefetch=prefetch), *names)


def test_each_admission_has_rows_of_its_own(demo: StoredModel) -> None:
    """And where every expert fits, so that nothing is read ahead, one that was asked for is refused."""
    configs = configurations(RuntimeConfig.of(expert_cache="33%"), "lru", "none,eamc", "all")
    assert [each.experts.admission for each in configs] == ["", "measured", "none"]
    workload = Workload(num_prompt=8, num_decode=4, repeats=1)
    rows = compare(demo, configs, workload, Lines(configs, lambda line: None, io.StringIO()))
    text = comparison_text(rows)
    assert text.count("  eamc, admission none  ") == 2 == text.count("  eamc    ")
    assert {row["admission"] for row in rows} == {"", "measured", "none"}
    with pytest.raises(UsageError, match="nothing is where all experts fit in memory; give a smaller --expert-cache"):
        run_bench(demo, RuntimeConfig.of(predictor="eamc").changed(admission="measured"), workload)


def test_each_runs_twice_the_second_time_in_the_reverse_order(demo: StoredModel) -> None:
    configs = configurations(RuntimeConfig.of(expert_cache="33%"), "lru,next-use", "none")
    said, shown = list[str](), io.StringIO()
    view = Lines(configs, said.append, shown)
    rows = compare(demo, configs, Workload(num_prompt=8, num_decode=4, repeats=1), view)
    assert [line.split(": ")[1] for line in said] == ["lru, none", "next-use, none", "next-use, none", "lru, none"]
    lines = [line.split() for line in comparison_text(rows).splitlines()]
    assert Counter((line[0], line[2]) for line in lines[1:5]) == Counter(
        (policy, cache) for policy in ("lru", "next-use") for cache in ("warm", "cold")
    )
    decode = [row for row in rows if row["test"] == "tg4"]
    for line in lines[1:5]:
        rates = [
            rate
            for row in decode
            if (row["policy"], "cold" if row["cold"] else "warm") == (line[0], line[2])
            for rate in row["samples_ts"]
        ]
        assert (line[4], line[6]) == (f"{min(rates):.2f}", f"{max(rates):.2f}")
    header, *measured = shown.getvalue().splitlines()
    assert header.split()[:3] == ["policy", "predictor", "cache"]
    assert [(line.split()[0], line.split()[2], line.split()[3]) for line in measured] == [
        (row["policy"], "cold" if row["cold"] else "warm", f"{row['median_ts']:.2f}")
        for run in zip(decode[1::2], decode[::2], strict=True)
        for row in run
    ], "each run's rows as they were measured, warm before cold"
    columns = header.index("cache")
    assert all(line[columns - 1] == " " and line[columns] in "wc" for line in measured), (
        "columns stand below each other"
    )

    stream = io.StringIO()
    drawn = DrawnTable(stream)
    drawn.begins("1 of 4: lru, none")
    drawn.measured(decode[:2])
    drawn.begins("2 of 4: next-use, none")
    drawn.measured(decode[2:4])
    drawn.close()
    frames = stream.getvalue().split("\x1b[J")[1:]
    assert [frame.count("\n") for frame in frames[:4]] == [2, 5, 5, 7], "a header, two rows a run, and what runs"
    assert [frame.split("\x1b[")[1] for frame in frames[:4]] == ["2A\r", "5A\r", "5A\r", "7A\r"], "back to its top"
    assert frames[3].splitlines()[6] == "2 of 4: next-use, none" and frames[4] == ""
