"""Puts the recorded results of the lab into pages of docs/lab, and draws their pictures.

    python benchmarks/lab/pages.py docs/lab

A page has its tables between `<!-- lab: NAME -->` and `<!-- end -->`; the text around them is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from moeinf.terminal.traces.picture import save_picture

Row = dict[str, Any]
Results = Mapping[str, list[Row]]  # rows by trace

PAGES: Final = ("paper.md", "policies.md", "several-rows.md")
NAMES: Final = {
    "deepseek-v2-lite-chat": "DeepSeek-V2-Lite",
    "gpt-oss-20b": "gpt-oss-20b",
    "qwen3-30b-a3b-short": "Qwen3-30B-A3B",
}
MARKED: Final = re.compile(r"(<!-- lab: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path)
    lab = parser.parse_args().lab
    for page in PAGES:
        path = lab / page
        path.write_text(with_tables(path.read_text(encoding="utf-8"), lab), encoding="utf-8")
    draw_all(lab)


def with_tables(text: str, lab: Path) -> str:
    """The page with the tables that the recorded results make."""
    return MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]](lab)}\n{found[3]}", text)


def results_of(lab: Path, name: str) -> Results:
    results: Results = json.loads((lab / f"{name}.json").read_text(encoding="utf-8"))["results"]
    return results


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f}"


def hit_rates(lab: Path) -> str:
    results = results_of(lab, "hit-rates")
    shares = sorted({row["share"] for rows in results.values() for row in rows})
    lines = []
    for trace, rows in results.items():
        for policy in dict.fromkeys(row["policy"] for row in rows):
            of_policy = {row["share"]: row["hits"] for row in rows if row["policy"] == policy}
            lines.append([NAMES[trace], f"`{policy}`", *(percent(of_policy[share]) for share in shares)])
    return table(["trace", "policy", *(f"{share:g} %" for share in shares)], lines)


def policies_in_time(lab: Path) -> str:
    return _times(results_of(lab, "policies-in-time"), "policy")


def predictors_in_time(lab: Path) -> str:
    return _times(results_of(lab, "predictors-in-time"), "prefetch")


def _times(results: Results, by: str) -> str:
    shares = sorted({row["share"] for rows in results.values() for row in rows})
    lines = []
    for trace, rows in results.items():
        for link in sorted({row["link"] for row in rows}):
            for name in dict.fromkeys(row[by] for row in rows):
                cells = {row["share"]: row for row in rows if row[by] == name and row["link"] == link}
                times = [f"{cells[share]['ms_a_token']:.1f}" for share in shares]
                lines.append([NAMES[trace], f"{link:g}", f"`{name}`", *times, percent(cells[20]["stall_share"], 0)])
    return table(["trace", "GB/s", by, *(f"{share:g} %" for share in shares), "stall at 20 %"], lines)


def predictions(lab: Path) -> str:
    lines = []
    for trace, rows in results_of(lab, "predictions").items():
        for name in dict.fromkeys(row["predictor"] for row in rows):
            of_name = {row["distance"]: row for row in rows if row["predictor"] == name}
            recalls = [percent(of_name[n]["recall"]) if n in of_name else "-" for n in (1, 2, 4)]
            nearest = of_name[min(of_name)]
            lines.append([NAMES[trace], f"`{name}`", *recalls, percent(nearest["precision"]), percent(nearest["used"])])
    return table(["trace", "predictor", "recall 1", "2", "4", "precision 1", "used 1"], lines)


def predictions_of_many(lab: Path) -> str:
    return _recall_and_precision(results_of(lab, "predictions-of-many"))


def capacity(lab: Path) -> str:
    return _paper_rows(results_of(lab, "capacity"), "requests kept", ["capacity"])


def sensitivity(lab: Path) -> str:
    return _paper_rows(results_of(lab, "sensitivity"), "choice", ["matches", "eps", "layer_decay"])


def _paper_rows(results: Results, title: str, keys: Sequence[str]) -> str:
    lines = []
    for trace, rows in results.items():
        for row in rows:
            (key,) = (key for key in keys if key in row)
            choice = f"{row[key]}" if len(keys) == 1 else f"{key.replace('_', ' ')}: {row[key]}"
            lines.append([NAMES[trace], choice, *map(percent, row["hits"].values()), percent(row["recall"])])
    shares = [f"{share} %" for share in next(iter(results.values()))[0]["hits"]]
    return table(["trace", title, *shares, "recall of the next layer"], lines)


def recovery(lab: Path) -> str:
    lines = []
    for trace, rows in results_of(lab, "recovery").items():
        for row in rows:
            behind = row["behind"]
            means = [percent(sum(part) / len(part)) for part in (behind[:1], behind[:5], behind[5:20])]
            after = row["recovered_after"]
            lines.append(
                [NAMES[trace], _recovering(row), percent(row["steady"]), *means, f"{after} of {row['requests']}"]
            )
    return table(
        ["trace", "policy", "hits without a change", "behind: first request", "first 5", "6 to 20", "recovered after"],
        lines,
    )


def _recovering(row: Row) -> str:
    return f"`{row['policy']}`" + (", with its prefetch" if row["prefetch"] else "")


def claims_in_time(lab: Path) -> str:
    lines = [
        [NAMES[trace], row["varied"], percent(row["hits"]), percent(row["used"], 0), f"{row['ms_a_token']:.1f}"]
        for trace, rows in results_of(lab, "claims-in-time").items()
        for row in rows
    ]
    return table(["trace", "the paper's system with", "hits", "used of what was read ahead", "ms a token"], lines)


def several_tokens(lab: Path) -> str:
    """Experts read a token, and milliseconds."""
    lines, shares = [], list[float]()
    for trace, rows in results_of(lab, "several-tokens").items():
        shares = sorted({row["share"] for row in rows})
        for kind in dict.fromkeys((row["policy"], row["prefetch"]) for row in rows):
            for tokens in sorted({row["tokens"] for row in rows}):
                of_kind = [row for row in rows if (row["policy"], row["prefetch"]) == kind and row["tokens"] == tokens]
                cells = [f"{row['reads']:.1f}, {row['ms_a_token']:.0f} ms" for row in of_kind]
                ahead = "" if kind[1] == "none" else f", {kind[1]}"
                lines.append([NAMES[trace], f"`{kind[0]}`{ahead}", str(tokens), *cells])
    return table(["trace", "policy", "tokens a step", *(f"{share:g} % resident" for share in shares)], lines)


def bounds(lab: Path) -> str:
    lines = []
    for trace, rows in results_of(lab, "bounds").items():
        worst, best = (rows[at]["hits"]["20"] for at in (0, -1))
        for row in rows:
            closed = (row["hits"]["20"] - worst) / (best - worst) if best > worst else None
            lines.append([NAMES[trace], row["told"], *map(percent, row["hits"].values()), percent(closed, 0)])
    shares = [f"{share} %" for share in next(iter(results_of(lab, "bounds").values()))[0]["hits"]]
    return table(["trace", "what is known", *shares, "of the way at 20 %"], lines)


def bounds_in_time(lab: Path) -> str:
    lines = []
    for trace, rows in results_of(lab, "bounds-in-time").items():
        for row in rows:
            times = [f"{ms:.1f}" for ms in row["ms_a_token"].values()]
            lines.append([NAMES[trace], f"{row['link']:g}", row["known"], *times])
    shares = [f"{share} %" for share in next(iter(results_of(lab, "bounds-in-time").values()))[0]["ms_a_token"]]
    return table(["trace", "GB/s", "what is known", *shares], lines)


def warm_start(lab: Path) -> str:
    """At 20 and 50 %. next-use does not look at the collection: only what the cache holds makes a difference to it."""
    lines = []
    for trace, rows in results_of(lab, "warm-start").items():
        for row in rows:
            again = row["policy"] == "next-use" and row["known"] != "empty" and not row["loaded"]
            if row["share"] in (20, 50) and not again:
                known = f"{row['known']}, cache filled from it" if row["loaded"] else row["known"]
                hits = [percent(row[f"first_{n}"]) for n in (1, 5, 30)]
                lines.append([NAMES[trace], f"`{row['policy']}`", f"{row['share']} %", known, *hits])
    header = ["trace", "policy", "resident", "collection at the start", "first request", "first 5", "first 30"]
    return table(header, lines)


def prefill_guess(lab: Path) -> str:
    return _recall_and_precision(results_of(lab, "prefill-guess"))


def _recall_and_precision(results: Results) -> str:
    lines = [
        [NAMES[trace], f"`{row['predictor']}`", percent(row["recall"]), percent(row["precision"])]
        for trace, rows in results.items()
        for row in rows
    ]
    return table(["trace", "predictor", "recall", "precision"], lines)


TABLES: Final[Mapping[str, Callable[[Path], str]]] = {
    "hit-rates": hit_rates,
    "policies-in-time": policies_in_time,
    "predictors-in-time": predictors_in_time,
    "predictions": predictions,
    "predictions-of-many": predictions_of_many,
    "capacity": capacity,
    "sensitivity": sensitivity,
    "several-tokens": several_tokens,
    "claims-in-time": claims_in_time,
    "bounds": bounds,
    "bounds-in-time": bounds_in_time,
    "recovery": recovery,
    "warm-start": warm_start,
    "prefill-guess": prefill_guess,
}


def draw_all(lab: Path) -> None:
    """The pictures, beside the results; the same results make the same bytes."""
    import matplotlib

    matplotlib.rcParams.update({"axes.grid": True, "grid.alpha": 0.3})
    _draw(lab, "hit-rates", "hits, %", lambda rows: _by_share(rows, "policy", "hits", 100))
    _draw(
        lab,
        "policies-in-time",
        "ms a token",
        lambda rows: _by_share(_of_disk(rows), "policy", "ms_a_token", 1),
        log_y=True,
    )
    _draw(
        lab,
        "predictors-in-time",
        "ms a token",
        lambda rows: _by_share(_of_disk(rows), "prefetch", "ms_a_token", 1),
        log_y=True,
    )
    _draw(lab, "capacity", "% (hits at 20 % resident; recall)", _by_capacity, x="requests kept", log=True)
    _draw(lab, "recovery", "points of hits behind", _by_request, x="requests since the change")


Lines = dict[str, tuple[list[float], list[float]]]


def _of_disk(rows: list[Row]) -> list[Row]:
    """Those of the slowest link."""
    slowest = min(row["link"] for row in rows)
    return [row for row in rows if row["link"] == slowest]


def _by_share(rows: list[Row], by: str, what: str, scale: float) -> Lines:
    lines: Lines = {}
    for row in rows:
        xs, ys = lines.setdefault(row[by], ([], []))
        xs.append(row["share"])
        ys.append(scale * row[what])
    return lines


def _by_capacity(rows: list[Row]) -> Lines:
    kept = [float(row["capacity"]) for row in rows]
    hits = [100 * row["hits"]["20"] for row in rows]
    return {"hits": (kept, hits), "recall": (kept, [100 * row["recall"] for row in rows])}


def _by_request(rows: list[Row]) -> Lines:
    """Means of five requests."""
    lines: Lines = {}
    for row in rows:
        behind = row["behind"]
        means = [100 * sum(behind[at : at + 5]) / 5 for at in range(len(behind) - 4)]
        lines[_recovering(row).replace("`", "")] = ([float(at) for at in range(len(means))], means)
    return lines


def _draw(
    lab: Path,
    name: str,
    y: str,
    lines_of: Callable[[list[Row]], Lines],
    x: str = "experts resident, %",
    log: bool = False,
    log_y: bool = False,
) -> None:
    from matplotlib.figure import Figure

    results = results_of(lab, name)
    figure = Figure(figsize=(5 * len(results), 4), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, (trace, rows) in zip(panels, results.items(), strict=True):
        for label, (xs, ys) in lines_of(rows).items():
            panel.plot(xs, ys, marker="." if len(xs) < 20 else None, label=label)
        panel.set_title(NAMES[trace])
        panel.set_xlabel(x)
        panel.set_ylabel(y)
        if log:
            panel.set_xscale("log")
        if log_y:
            panel.set_yscale("log")
        panel.legend(fontsize="x-small")
    save_picture(figure, lab / f"{name}.svg")


if __name__ == "__main__":
    main()
