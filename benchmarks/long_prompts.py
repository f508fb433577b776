"""Reads a long prompt in pieces of 512 tokens, and in the pieces that slots lend memory to, by turns.

    python benchmarks/long_prompts.py MODEL [--prompt 8000] [--cache 33%] [--rounds 2] [-- MORE OPTIONS OF BENCH]

Each turn is a new process, with a request for which the cache is empty and one behind it, whose prompt begins
otherwise. How a disk of a known rate can be had says two_disks.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

FIGURES: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
    ("first token s", "pp", lambda row: row["ttft_ms"] / 1e3),
    ("read GB", "pp", lambda row: row["bytes_per_token"] * row["n_prompt"] / 1e9),
    ("waited s", "pp", lambda row: row["stall_s"]),
    ("most memory GB", "pp", lambda row: row["peak_rss_bytes"] / 1e9),
    ("decode tokens/s", "tg", lambda row: row["avg_ts"]),
)


def measured(model: str, given: argparse.Namespace, more: list[str]) -> list[dict[str, Any]]:
    sizes = ["-p", str(given.prompt), "-n", "16", "-r", "1", "-c", str(given.prompt + 64)]
    words = ["moeinf", "bench", model, "--expert-cache", given.cache, *sizes, "-o", "json", *more, *given.more]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--cache", default="33%")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    ways: dict[str, list[str]] = {"pieces of 512": ["--prefill-chunk", "512"], "long pieces": []}
    found: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in ways}
    for number in range(given.rounds):
        for way in list(ways)[:: -1 if number % 2 else 1]:  # the order changes with each round
            found[way].append(measured(given.model, given, ways[way]))
    for cold in (True, False):
        for way, runs in found.items():
            line = [f"{'cold' if cold else 'warm'}, {way}"]
            for name, test, figure in FIGURES:
                values = [
                    figure(next(row for row in run if row["cold"] == cold and row["test"].startswith(test)))
                    for run in runs
                ]
                line.append(f"{name} {statistics.median(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})")
            print(" · ".join(line))


if __name__ == "__main__":
    main()
