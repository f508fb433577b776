"""Runs the experiments of docs/lab/paper.md, and records their results as JSON, one file an experiment.

    python benchmarks/lab/record.py TRACES docs/lab            # `make lab` does this, and then draws the pages
    python benchmarks/lab/record.py TRACES docs/lab recovery   # one of them

TRACES holds the traces of docs/lab/policies.md, or some of them: deepseek-v2-lite-chat, gpt-oss-20b,
qwen3-30b-a3b-short.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import bounds
import experiments
import paper_whole
from experiments import Row, Subject

from moeinf.hardware import cpu_name
from moeinf.traces.guesses import LookAheadQuality
from moeinf.traces.trace import load_trace

EXPERT_BYTES: Final = {
    "deepseek-v2-lite-chat": 4_866_048,  # 3 x 2048 x 1408 weights in q4_k
    "gpt-oss-20b": 13_219_200,  # 3 x 2880 x 2880 in mxfp4
    "qwen3-30b-a3b-short": 2_654_208,  # 3 x 2048 x 768 in q4_k
}
BUS: Final = 12.0  # GB/s, to a GPU
LINKS: Final = (2.5, BUS)  # the first is a disk
COMPUTE_US: Final = 500.0  # of a layer
UNFILTERED: Final = "eamc"  # what is replayed without admission, too
BOUND_TOKENS: Final = 2000
BOUND_TOKENS_IN_TIME: Final = 300
CACHED: Final = "lru,lfu,paper,next-use,belady"
EXPERIMENTS: Final[Mapping[str, Callable[[Subject], list[Row]]]] = {
    "hit-rates": experiments.hit_rates,
    "policies-in-time": lambda subject: [
        row | {"link": link}
        for link in LINKS
        for row in experiments.times(subject, link, COMPUTE_US, f"{CACHED},no-cache,whole-layers", "none")
    ],
    "predictors-in-time": lambda subject: [
        row | {"link": link}
        for link in LINKS
        for row in [
            *experiments.times(subject, link, COMPUTE_US, "next-use", "all"),
            *experiments.times(subject, link, COMPUTE_US, "next-use", UNFILTERED, "none"),
        ]
    ],
    "several-tokens": lambda subject: experiments.several_tokens(subject, LINKS[0], COMPUTE_US),
    "claims-in-time": lambda subject: paper_whole.claims_in_time(subject, subject.timing(BUS, COMPUTE_US)),
    "bounds": lambda subject: bounds.of_eviction(load_trace(subject.folder, BOUND_TOKENS)),
    "bounds-in-time": lambda subject: [
        row | {"link": link}
        for link in LINKS
        for row in bounds.of_prefetch(
            load_trace(subject.folder, BOUND_TOKENS_IN_TIME),
            subject.timing(link, COMPUTE_US),
            LookAheadQuality(experiments.LOOK_AHEAD, experiments.LOOK_AHEAD, experiments.CONFIDENCE),
        )
    ],
    "predictions": experiments.predictions,
    "predictions-of-many": experiments.predictions_of_many,
    "capacity": experiments.capacities,
    "sensitivity": experiments.sensitivity,
    "recovery": lambda subject: experiments.recovery(subject, subject.timing(BUS, COMPUTE_US)),
    "warm-start": experiments.warm_start,
    "prefill-guess": experiments.prefill_guess,
}
FEW_REQUESTS: Final = 20  # below these, what is learned from past requests cannot be measured
OF_REQUESTS: Final = (
    "predictions-of-many",
    "capacity",
    "recovery",
    "warm-start",
    "prefill-guess",
    "sensitivity",
    "claims-in-time",
    "several-tokens",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("only", nargs="*", choices=[*EXPERIMENTS, []])
    given = parser.parse_args()
    subjects = [
        Subject(given.traces / name, expert_bytes)
        for name, expert_bytes in EXPERT_BYTES.items()
        if (given.traces / name).is_dir()
    ]
    if not subjects:
        sys.exit(f"{given.traces} has none of {', '.join(EXPERT_BYTES)}")
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.only or EXPERIMENTS:
        started = time.monotonic()
        results = {
            subject.folder.name: EXPERIMENTS[name](subject)
            for subject in subjects
            if name not in OF_REQUESTS or subject.beginnings().num_requests >= FEW_REQUESTS
        }
        facts = {"experiment": name, "commit": _commit(), "machine": cpu_name(), "command": _command(name)}
        text = json.dumps(facts | {"results": results}, indent=1)
        (given.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def _command(name: str) -> str:
    return f"python benchmarks/lab/record.py TRACES docs/lab {name}"


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
