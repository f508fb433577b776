"""Draws ranks.svg of ranks.json, which `benchmarks/ranks/simulated_ranks.py ... --json` has written; see scale-out.md.

Run: python docs/lab/plot_ranks.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moeinf.terminal.traces.picture import save_picture

HERE = Path(__file__).parent


MEASURES = (("token_s", "ms a token"), ("prompt_token_s", "ms a prompt token"))


def draw(panel: Any, cells: list[dict[str, Any]], name: str) -> None:
    """A line for each network, which begins with one rank."""
    alone = next(cell for cell in cells if cell["ranks"] == 1)
    for network in dict.fromkeys(cell["network"] for cell in cells if cell["network"]):
        line = [alone, *(cell for cell in cells if cell["network"] == network)]
        panel.plot([cell["ranks"] for cell in line], [1e3 * cell[name] for cell in line], "o-", label=network)
    panel.set_xscale("log", base=2)
    panel.set_xticks([cell["ranks"] for cell in line], [str(cell["ranks"]) for cell in line])
    panel.set_ylim(bottom=0)
    panel.set_xlabel("ranks")
    panel.grid(alpha=0.3)
    panel.legend()


def main() -> None:
    from matplotlib.figure import Figure

    cells: list[dict[str, Any]] = json.loads((HERE / "ranks.json").read_text())
    shares = sorted({cell["share"] for cell in cells})
    figure = Figure(figsize=(4.6 * len(shares), 6.6), layout="constrained")
    for row, (name, label) in zip(figure.subplots(2, len(shares), squeeze=False), MEASURES, strict=True):
        for panel, share in zip(row, shares, strict=True):
            draw(panel, [cell for cell in cells if cell["share"] == share], name)
            panel.set_title(f"each rank holds {share:g} % of the experts", fontsize="medium")
            panel.set_ylabel(f"{label}, simulated")
    save_picture(figure, HERE / "ranks.svg")


if __name__ == "__main__":
    main()
