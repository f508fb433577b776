"""Decodes with experts on one disk and on two, by turns, in a new process each time.

    python benchmarks/two_disks.py MODEL [--rounds 3] [-- MORE OPTIONS OF BENCH]

MODEL has been spread (`moeinf spread MODEL --also DIR`). Two disks of a known rate can be had of two loop devices, each
with a file system of its own, and a control group that this script, and so all that it starts, is in:

    echo "7:0 200000000" > /sys/fs/cgroup/blkio/twodisks/blkio.throttle.read_bps_device
    echo $$ > /sys/fs/cgroup/blkio/twodisks/cgroup.procs

A divided model cannot be read from one disk: it is measured alone (--only-both).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

FIGURES = (("t/s", "tg", "avg_ts", 1.0), ("first token s", "pp", "ttft_ms", 1e-3), ("GB/s", "tg", "read_gb_per_s", 1.0))


def measured(model: str, more: list[str]) -> list[dict[str, Any]]:
    words = ["moeinf", "bench", model, "--expert-cache", "33%", "-p", "32", "-n", "48", "-r", "1", "-o", "json", *more]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def text(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-both", action="store_true")
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    ways: dict[str, list[str]] = {"both": []} if given.only_both else {"one": ["--also", "none"], "both": []}
    found: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in ways}
    for number in range(given.rounds):
        for way in list(ways)[:: -1 if number % 2 else 1]:  # the order changes with each round
            found[way].append(measured(given.model, [*ways[way], *given.more]))
    for cold in (True, False):
        for way, runs in found.items():
            line = [f"{'cold' if cold else 'warm'} {way}"]
            for name, test, key, unit in FIGURES:
                rows = [
                    next(row for row in run if row["cold"] == cold and row["test"].startswith(test)) for run in runs
                ]
                line.append(f"{name} {text([row[key] * unit for row in rows])}")
            print(" · ".join(line))
    for way, runs in found.items():
        print(f"{way}: the disks gave {text([run[0]['disk_gb_per_s'] for run in runs])} GB/s to reads alone")


if __name__ == "__main__":
    main()
