"""Writes the tables and the picture of docs/lab/quantisation.md from benchmarks/results/quality, without arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from moeinf.terminal.traces.picture import save_picture

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "quality"
PAGE = ROOT / "docs" / "lab" / "quantisation.md"
PICTURE = PAGE.with_suffix(".svg")
NAMES: Final = {"mixture": "a mixture of real weights", "demo": "the embedded model"}
TABLES: Final = (*NAMES, "mixture-amx")  # the last has no panel of the picture
_KINDS: Final = {  # of rows, by their tags: the first that matches
    "moeinf, a size and a calibration": "size-of-.*-calibrated",
    "moeinf, a size": "size-of-.*",
    "moeinf, calibrated": ".*-calibrated",
    "llama-quantize by a recipe, with an importance matrix": ".*-recipe-imatrix",
    "llama-quantize by a recipe": ".*-recipe",
    "llama-quantize, with an importance matrix": ".*-imatrix",
    "llama-quantize": "[A-Z].*",
    "moeinf": ".*",
}


def kind_of(tag: str) -> str:
    return next(kind for kind, tags in _KINDS.items() if re.fullmatch(tags, tag))


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(found: dict[str, Any]) -> str:
    """The rows from the largest to the smallest; of those that have the size of another, what share of its KL."""
    rows = found["rows"]
    timed = any("tokens_per_s" in row for row in rows.values())
    cells = ["made by", "size, MB", "KL, nats", "99 % below", "perplexity", "same token", "KL beside its size's"]
    lines = [cells + ["tokens/s"] * timed, ["---"] * (len(cells) + timed)]
    for tag, row in sorted(rows.items(), key=lambda item: -item[1]["weights_bytes"]):
        peer = _peer_of(tag, rows)
        share = "" if peer is None else f"{row['kl'] / rows[peer]['kl']:.2f} of `{peer}`'s"
        more = row["perplexity"] / found["perplexity"] - 1
        line = [
            f"`{tag}`",
            f"{row['weights_bytes'] / 1e6:,.1f}",
            f"{row['kl']:.5f} ± {row['kl_error']:.5f}",
            f"{row['kl_99']:.4f}",
            f"{more:+.2%}",
            f"{row['same_token']:.1%}",
            share,
        ]
        lines.append(line + [f"{row.get('tokens_per_s', ''):.5}"] * timed)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _peer_of(tag: str, rows: dict[str, Any]) -> str | None:
    """The row whose size this one has."""
    found = re.fullmatch(r"size-of-(.+?)(-calibrated)?", tag)
    if found is None:
        return None
    peer = next(each for each in rows if each.lower() == found[1] and each != found[1])  # llama.cpp's are in capitals
    return f"{peer}-imatrix" if found[2] and f"{peer}-imatrix" in rows else peer


def draw(path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(1, len(NAMES))
    for panel, (name, title) in zip(panels, NAMES.items(), strict=True):
        rows = recorded(name)["rows"]
        for kind in _KINDS:
            points = sorted(
                (row["weights_bytes"] / 1e6, row["kl"]) for tag, row in rows.items() if kind_of(tag) == kind
            )
            if points:
                panel.plot(*zip(*points, strict=True), marker="o", label=kind)
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel("weights, MB")
        panel.set_ylabel("KL divergence from bf16, nats a token")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    save_picture(figure, path)


def page_with_tables(text: str) -> str:
    for name in TABLES:
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        made = table(recorded(name))
        text = between.sub(lambda match, made=made: f"{match[1]}{made}{match[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)
