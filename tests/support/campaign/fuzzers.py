"""The fuzzers of tests/fuzz, with a seed of the step's own: each mutates files, messages, bits or requests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from tests.support.campaign.step import Done, Turn
from tests.support.faults.subjects import SUBJECTS

ROOT: Final = Path(__file__).parents[3]
_FUZZERS: Final = {
    "hostile files": ("tests.fuzz.hostile_files",),
    "hostile GGUF headers": ("tests.fuzz.hostile_gguf",),
    "hostile peers": ("tests.fuzz.hostile_peers",),
    "flipped bits": ("tests.fuzz.flipped_bits",),
    "requests given up at a call": ("tests.fuzz.requests_given_up", "--at", "calls"),
    "requests given up at a line": ("tests.fuzz.requests_given_up", "--at", "lines"),
    "requests given up at an allocation": ("tests.fuzz.requests_given_up", "--at", "allocations"),
}


def mutations(turn: Turn) -> Done:
    """One of the fuzzers, for so many seconds."""
    name, seed = turn.of(list(_FUZZERS)), turn.rng.randrange(1 << 30)
    only = ["--only", turn.rng.choice(list(SUBJECTS))] if "given up" in name else []
    words = [*_FUZZERS[name], *only, "--seconds", str(turn.seconds), "--seed", str(seed)]
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    ended = [int(count) for line in _summaries(done.stdout) for count in re.findall(r"(\d+) [A-Za-z]", line)]
    faults = [line for line in done.stdout.splitlines() if re.match(r"FAULT|[A-Z ]{6,}:", line)]
    if done.returncode != 0 or not ended:
        said = "; ".join(faults) or f"{done.stdout[-300:]} {done.stderr[-600:]}"
        faults = [f"python -m {' '.join(words)} ended with {done.returncode}: {said}"]
    return Done(Counter({f"cases: {name}": sum(ended)}), faults)


def _summaries(out: str) -> list[str]:
    """The lines that tell how many cases ended in which way, without what they are of in all."""
    found = [line.partition(" of ")[0].partition("; ")[0] for line in out.splitlines() if re.search(r"\d+ [a-z]", line)]
    return [line for line in found if not line.startswith("FAULT")]
