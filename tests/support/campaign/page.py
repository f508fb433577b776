"""python -m tests.support.campaign.page STEPS [PAGE]: puts what a campaign has found into docs/lab/campaign.md.

STEPS is the steps.jsonl of its folder. The page has its tables between `<!-- campaign: NAME -->` and `<!-- end -->`;
the text around them is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.support.campaign.record import Record

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "lab" / "campaign.md"
KEPT: Final = ROOT / "benchmarks" / "results" / "campaigns.jsonl"  # the steps of all campaigns that the page tells of
_MARKED: Final = re.compile(r"(<!-- campaign: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_GROUPS: Final = {  # of counts, in the order of the page
    "kills": "commands killed at an operation on files",
    "failing": "calls that failed",
    "short": "reads and writes that were short",
    "slow": "calls that took 0.2 s longer",
    "every": "commands of whose calls every k-th failed, was short or slow",
    "unswept": "",  # of the calls of a sweep, those between every k-th
    "power": "power cuts",
    "world": "",
    "session": "",
    "cases": "files, messages, bits and requests spoilt by the fuzzers",
    "executions": "inputs of coverage-guided fuzzing",
    "server": "",
    "stranger": "",
    "cable": "",
    "beyond us": "",
}
Steps = Sequence[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    given = parser.parse_args()
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    lines += [line for step in Record(given.steps).steps if (line := json.dumps(step)) not in lines]
    KEPT.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    steps = [json.loads(line) for line in lines]
    given.page.write_text(with_tables(given.page.read_text(encoding="utf-8"), steps), encoding="utf-8")


def with_tables(page: str, steps: Steps) -> str:
    """The page with each of its tables made anew. Raises KeyError for a mark that nothing is known of."""
    tables: dict[str, Callable[[Steps], str]] = {
        "runs": _runs,
        "counts": _counts,
        "details": _details,
        "executions": _executions,
        "measured": _measured,
    }
    return _MARKED.sub(lambda found: f"{found[1]}{tables[found[2]](steps)}{found[3]}", page)


def _runs(steps: Steps) -> str:
    lines = ["| kind | steps | hours | seeds | commits | steps with faults |", "|---|---:|---:|---|---|---:|"]
    for kind in dict.fromkeys(step["kind"] for step in steps):
        own = [step for step in steps if step["kind"] == kind]
        hours = sum(step["seconds"] for step in own) / 3600
        seeds = ", ".join(str(seed) for seed in sorted({step["seed"] for step in own}))
        commits = ", ".join(dict.fromkeys(step["commit"] for step in own))
        failed = sum(bool(step["faults"]) for step in own)
        number = sum(step.get("steps", 1) for step in own)  # of the first campaign there are only sums
        lines.append(f"| {kind} | {number} | {hours:.2f} | {seeds} | {commits} | {failed} |")
    return "\n".join([*lines, ""])


def _by_group(steps: Steps) -> dict[str, Counter[str]]:
    """Counts by group, then by what is behind the colon."""
    groups: dict[str, Counter[str]] = {}
    for step in steps:
        for what, count in step["counts"].items():
            group, _, detail = what.partition(": ")
            groups.setdefault(group.split(" ")[0] if group != "beyond us" else group, Counter())[detail] += count
    return groups


def _counts(steps: Steps) -> str:
    groups, lines = _by_group(steps), ["| what | how often |", "|---|---:|"]
    for group, what in _GROUPS.items():
        counts = groups.get(group, Counter())
        if what:
            lines.append(f"| {what} | {counts.total():,} |")
        else:
            lines += [f"| {group}: {detail} | {count:,} |" for detail, count in counts.items()]
    return "\n".join([*lines, ""])


def _details(steps: Steps) -> str:
    """Kills and struck calls by command."""
    groups = _by_group(steps)
    columns = ("kills", "power", "failing", "short", "slow", "every")
    scenes = sorted({scene for group in columns for scene in groups.get(group, {})})
    lines = [
        "| command | kills | power cuts | failing | short | slow | every k-th |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for scene in scenes:
        cells = " | ".join(f"{groups.get(group, Counter())[scene]:,}" for group in columns)
        lines.append(f"| {scene} | {cells} |")
    return "\n".join([*lines, ""])


def _measured(steps: Steps) -> str:
    """What was measured of servers: of all steps, each as long or as many requests as it came to."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.get("measured", {}).items():
            values.setdefault(name, []).append(value)
    lines = ["| what | steps | median | most |", "|---|---:|---:|---:|"]
    for name, found in sorted(values.items()):
        lines.append(f"| {name} | {len(found)} | {median(found):.3g} | {max(found):.3g} |")
    return "\n".join([*lines, ""])


def _executions(steps: Steps) -> str:
    """Inputs by target."""
    counts = _by_group(steps).get("executions", Counter())
    lines = [f"| {target} | {count:,} |" for target, count in sorted(counts.items()) if count]
    return "\n".join(["| target | inputs |", "|---|---:|", *lines, ""])


if __name__ == "__main__":
    main()
