"""What the fuzzers that number their cases have in common: limits, counts, and how a fault is told."""

from __future__ import annotations

import argparse
import math
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

ADDRESS_BYTES = 2 << 30  # above what the process has at its start
HANG_S = 120  # no figure of speed: a case takes a fraction of a second


class Cases(Protocol):
    def run(self, seed: int, number: int) -> str:
        """Returns how a case ended, in a word or two; raises what moeinf must not raise."""
        ...


def run_cases(doc: str | None, make: Callable[[Path], Cases]) -> int:
    """Runs what the command line asks for, and returns the exit status: 1 after a fault.

    make: is given a folder that lasts as long as the run. Memory is traced from when it has returned.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    counts, faults, started = Counter[str](), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases = make(Path(folder))
        held_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held_bytes + ADDRESS_BYTES, resource.RLIM_INFINITY))
        tracemalloc.start()
        for number in range(given.cases) if given.case is None else [given.case]:
            if time.monotonic() - started > given.seconds:
                break
            signal.alarm(HANG_S)  # ends the process: the number of the case is on the screen
            try:
                counts[cases.run(given.seed, number)] += 1
            except Exception:  # the top: a fault is what this looks for
                faults += 1
                print(f"FAULT: --seed {given.seed} --case {number}\n{traceback.format_exc()}", flush=True)
            signal.alarm(0)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())), f"; {faults} faults", flush=True)
    return int(faults > 0)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Data that is cut off, longer, or of which single bytes are others."""
    at, kind = rng.randrange(len(data) + 1), rng.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at:]
    if kind == 2:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 3:
        return data[:at] + rng.choice([b"\xff" * 8, bytes(8), b"\0\0\0\0\0\0\0\x80"]) + data[at + 8 :]
    return data + data[at:]


def a_few(name: str, cases: int) -> str:
    """Runs cases of a fuzzer of this folder in a process of its own, and returns what it said; fails at a fault."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{name}", "--cases", str(cases), "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0 and "; 0 faults" in done.stdout, done.stdout + done.stderr
    return done.stdout
