"""Draws docs/ranks.svg of docs/ranks.json, which `moeinf simulate --ranks ... --json` has written; see scale-out.md.

Run: python docs/plot_ranks.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

HERE = Path(__file__).parent


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "moeinf"  # the same figures make the same file
    from matplotlib.figure import Figure

    cells: list[dict[str, Any]] = json.loads((HERE / "ranks.json").read_text())
    shares = sorted({cell["share"] for cell in cells})
    figure = Figure(figsize=(4.6 * len(shares), 3.8), layout="constrained")
    panels = figure.subplots(1, len(shares), squeeze=False)[0]
    for panel, share in zip(panels, shares, strict=True):
        rows = [cell for cell in cells if cell["share"] == share and cell["gather"] == "rows"]
        alone = next(cell for cell in rows if cell["ranks"] == 1)
        for network in dict.fromkeys(cell["network"] for cell in rows if cell["network"]):
            line = [alone, *(cell for cell in rows if cell["network"] == network)]
            panel.plot([cell["ranks"] for cell in line], [1e3 * cell["token_s"] for cell in line], "o-", label=network)
        panel.set_xscale("log", base=2)
        panel.set_ylim(bottom=0)
        panel.set_title(f"each rank holds {share:g} % of the experts", fontsize="medium")
        panel.set_xlabel("ranks")
        panel.set_ylabel("ms a token, simulated")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(HERE / "ranks.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
