"""The same workload under several eviction policies and predictors, one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from moeinf.bench.live_bench import Workload, checked_routing, run_bench
from moeinf.bench.rows import Row
from moeinf.config import RuntimeConfig
from moeinf.errors import UsageError
from moeinf.runtime.policy.eviction import POLICIES, TUNED
from moeinf.runtime.policy.predictors import NO_PREDICTOR, PREDICTORS, check_predictor
from moeinf.runtime.prefetch import MEASURED, admissions_of, prefetch_text
from moeinf.store.library import StoredModel
from moeinf.terminal.screen import table

ALL: Final = "all"
_HEADER: Final = (
    "policy",
    "predictor",
    "cache",
    "t/s",
    "from - to",
    "p50 ms",
    "hit",
    "LRU",
    "best",
    "late",
    "wasted",
    "stall ms",
    "MiB",
)
_LEGEND: Final = (
    "Decode, the fastest first: the median request of two runs, the second in the reverse order, and the slowest and\n"
    "fastest. late: activations whose expert was on its way; wasted: prefetches that were not used; stall ms: waited\n"
    "for experts; MiB: read of them; all four for a token. LRU, best: what an LRU cache of as many experts would have\n"
    "hit of the same tokens, and the best one possible, which knows what comes (Belady), from the same beginning."
)


def configurations(
    config: RuntimeConfig, policies: str | None, predictors: str | None, admissions: str | None = None
) -> list[RuntimeConfig]:
    """Every policy with every predictor and admission. All three: names with commas, or all; None: as configured.

    Raises UsageError for an unknown name, and for predictors and admissions where nothing is prefetched.
    """
    if predictors is not None and not config.experts.prefetch:
        raise UsageError(f"--predictor {predictors} means nothing with --no-prefetch; leave one of them out")
    chosen_policies = _names(policies, config.experts.policy, POLICIES)
    for name in chosen_policies:
        if policies is not None and name not in (*POLICIES, TUNED):
            raise UsageError(f"unknown --policy {name!r}; known: {ALL}, {', '.join((*POLICIES, TUNED))}")
    chosen_predictors = _names(predictors, config.experts.predictor, PREDICTORS)
    for name in chosen_predictors:
        if predictors is not None:
            check_predictor(name)
    prefetches = config.experts.prefetch and {*chosen_predictors} != {NO_PREDICTOR}
    chosen_admissions = () if admissions is None else admissions_of(admissions, prefetches=prefetches)
    return [
        config.changed(policy=policy, predictor=predictor, admission=admission)
        for policy in chosen_policies
        for predictor in chosen_predictors
        for admission in (chosen_admissions if predictor != NO_PREDICTOR else ()) or ("",)
    ]


def _names(text: str | None, configured: str, known: Sequence[str]) -> Sequence[str]:
    if text is None:
        return (configured,)
    return known if text == ALL else tuple(dict.fromkeys(text.split(",")))


class View(Protocol):
    """Whoever watches a comparison: see comparison_view.py."""

    def begins(self, line: str) -> None:
        """Says in a line what is measured now."""
        ...

    def measured(self, rows: Sequence[Row]) -> None:
        """Takes the rows of one configuration's run."""
        ...


def compare(stored: StoredModel, configs: Sequence[RuntimeConfig], workload: Workload, view: View) -> list[Row]:
    """The rows of each configuration, and then of all again in the reverse order: a machine may grow slower meanwhile.

    The model is opened anew for each, and the view is told of it. Raises what run_bench raises.
    """
    for config in configs:
        checked_routing(stored, config, workload)
    rows: list[Row] = []
    runs = (*configs, *reversed(configs))
    for number, config in enumerate(runs, 1):
        predictor = config.experts.predictor or "the default predictor" if config.experts.prefetch else "no prefetch"
        predictor = prefetch_text(predictor, config.experts.admission or MEASURED)
        view.begins(f"{number} of {len(runs)}: {config.experts.policy or 'the default policy'}, {predictor}")
        found = run_bench(stored, config, workload)
        rows += found
        view.measured(found)
    return rows


def comparison_text(rows: Sequence[Row]) -> str:
    """A line for each configuration's decode, warm and cold, the fastest first, and what the columns are."""
    return "\n".join([*table(comparison_cells(rows), gap=2), "", _LEGEND])


def comparison_cells(rows: Sequence[Row]) -> list[list[str]]:
    """The header, and a row for each configuration's decode, warm and cold, the fastest first."""
    groups: dict[tuple[bool, str, str, str], list[Row]] = {}
    for row in rows:
        if row["test"].startswith("tg"):
            groups.setdefault((row["cold"], row["policy"], row["predictor"], row["admission"]), []).append(row)
    order = sorted(groups.values(), key=lambda group: (group[0]["cold"], -statistics.median(_samples(group))))
    return [list(_HEADER), *map(_cells, order)]


def _samples(group: Sequence[Row]) -> list[float]:
    return [rate for row in group for rate in row["samples_ts"]]


def _cells(group: Sequence[Row]) -> list[str]:
    row, rates = group[0], _samples(group)
    tokens = row["n_gen"] * len(rates)

    def a_token(name: Literal["late_hits", "prefetches_wasted", "stall_s"]) -> float:
        return sum(each[name] for each in group) / tokens

    activations = sum(each["hits"] + each["misses"] for each in group)
    return [
        row["policy"],
        prefetch_text(row["predictor"], row["admission"] or MEASURED),
        "cold" if row["cold"] else "warm",
        f"{statistics.median(rates):.2f}",
        f"{min(rates):.2f} - {max(rates):.2f}",
        f"{statistics.fmean(each['itl_ms']['p50'] for each in group):.1f}",
        f"{100 * sum(each['hits'] for each in group) / max(1, activations):.1f}%",
        _mean_percent([each["lru_hit_rate"] for each in group]),
        _mean_percent([each["best_hit_rate"] for each in group]),
        f"{a_token('late_hits'):.1f}",
        f"{a_token('prefetches_wasted'):.1f}",
        f"{1000 * a_token('stall_s'):.1f}",
        f"{statistics.fmean(each['bytes_per_token'] for each in group) / 2**20:.2f}",
    ]


def _mean_percent(rates: Sequence[float | None]) -> str:
    """Of two runs, which have the same requests; "-" where it is not known of both."""
    known = [rate for rate in rates if rate is not None]
    return f"{100 * statistics.fmean(known):.1f}%" if known and len(known) == len(rates) else "-"
