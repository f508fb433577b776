"""Gives requests up at their n-th place of Python, for many n, and asks again: the answers are those from before.

    python -m tests.fuzz.requests_given_up [--seconds 600 | --cases 30] [--seed 1] [--only NAME] [--at lines]

Each case raises a KeyboardInterrupt or a MemoryError where a function of the package begins, at any of its lines, or
refuses an allocation of the native module, in a request of a model (tests/support/faults/subjects.py); the same prompt
and a longer one then have the answers that they had, from caches that hold nothing back. Exits 1 at a fault.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.faults.given_up import PLACES, sweep
from tests.support.faults.native import preloaded, run_preloaded
from tests.support.faults.subjects import SUBJECTS, take_pages_ahead


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SUBJECTS)
    parser.add_argument("--at", choices=PLACES, default=PLACES[0])
    given = parser.parse_args()
    if given.at == "allocations" and not preloaded():
        with tempfile.TemporaryDirectory() as folder:
            return run_preloaded(f"{__package__}.requests_given_up", sys.argv[1:], Path(folder))
    subjects = SUBJECTS if given.only is None else {given.only: SUBJECTS[given.only]}
    failed = False
    with pytest.MonkeyPatch.context() as patch:
        take_pages_ahead(patch)
        for name, subject in subjects.items():
            with tempfile.TemporaryDirectory() as folder:
                counts, faults = sweep(
                    subject, Path(folder), given.seed, given.cases, given.seconds / len(subjects), given.at
                )
            told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
            print(f"{name}: {told}; {len(faults)} faults", flush=True)
            for fault in faults:
                print(f"FAULT: {name}: {fault}", flush=True)
            failed |= bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
