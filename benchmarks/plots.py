"""Draws docs/speed-by-memory.svg from the recorded results in benchmarks/results.

    python benchmarks/plots.py [FOLDER]

Each file there has the figures of one table of docs/: its command, commit and machine, whose weights and routing it was
measured with, and the runs. FOLDER: where the picture goes, docs/ unless another is named.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from moeinf.bench.bench_plot import MeasuredRun, draw

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = "speed-by-memory.svg"


def recorded() -> list[MeasuredRun]:
    """The runs of all files, each named by its model, weights and routing."""
    runs = []
    for path in sorted(RESULTS.glob("*.json")):
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for run in result["runs"]:
            runs.append(
                MeasuredRun(
                    f"{run['model']}: {result['weights']} weights, {result['routing']} routing",
                    run["ram_bytes"],
                    run["tokens_per_s"],
                    run["hit_rate"],
                    run.get("resident"),
                )
            )
    return runs


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    draw(
        recorded(),
        "Decoding at 4 bits on 2 cores (Xeon with AVX-512, a disk of 2 to 2.4 GB/s)",
        folder / PICTURE,
        log=True,
    )
    print(folder / PICTURE)


if __name__ == "__main__":
    main()
