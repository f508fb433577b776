"""Trials of every kind by turns: python -m tests.support.campaign.driver --state FOLDER [--hours 1] [--seed 1].

Each step is a process of its own for a minute or so; what it found is a line of FOLDER/steps.jsonl. Begun again
with the same folder, after whatever end, the campaign goes on behind the last of these lines. A fault is printed with
the command that repeats its step, which is this one with --step N; so ends in exit code 1. docs/lab/campaign.md tells
what is tried, and has the results.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.campaign.kinds import KINDS
from tests.support.campaign.record import Record
from tests.support.campaign.step import Done, Turn

ROOT = Path(__file__).parents[3]
STEP_SECONDS = 60.0
PATIENCE_S = 7200.0  # for a step that has not come to its end: it hangs, also where others have the machine
_SET_PARENT_DEATH_SIGNAL = 1


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.campaign.driver",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=STEP_SECONDS, help="of a step")
    parser.add_argument("--step", type=int, help="repeat this step, and record nothing")
    given = parser.parse_args()
    kinds = given.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    given.state.mkdir(parents=True, exist_ok=True)
    if given.step is not None:
        if len(kinds) != 1:
            parser.error("--step is of one kind: name it with --only")
        done = carry_out(kinds[0], given.seed, given.step, given.state / f"repeated-{os.getpid()}", given.seconds)
        print(json.dumps(vars(done)), flush=True)
        return int(bool(done.faults))
    return run(given.state, kinds, given.seed, given.hours, given.seconds)


def run(
    state: Path, kinds: list[str], seed: int, hours: float, seconds: float, clock: Callable[[], float] = time.monotonic
) -> int:
    """Steps until the time is over; the exit code is 1 where one of them found a fault."""
    record, end, failed = Record(state / "steps.jsonl"), clock() + 3600 * hours, False
    while clock() < end:
        kind = min(kinds, key=lambda each: record.seconds(each) / KINDS[each].weight)
        number = record.next_step(kind, seed)
        command = [sys.executable, "-m", "tests.support.campaign.driver", "--state", str(state), "--only", kind]
        command += ["--seed", str(seed), "--step", str(number), "--seconds", str(seconds)]
        begun = clock()
        done = in_a_process(command)
        took = clock() - begun
        record.add(kind, seed, number, commit(), took, done)
        told = ", ".join(f"{count} {what}" for what, count in sorted(done.counts.items())) or "nothing"
        print(
            f"{time.strftime('%H:%M:%S')} {kind} {number}: {told}; {len(done.faults)} faults; {took:.0f} s", flush=True
        )
        for fault in done.faults:
            print(f"FAULT: {fault}\n  repeat: {' '.join(command)}", flush=True)
        failed |= bool(done.faults)
    return int(failed)


def in_a_process(command: list[str]) -> Done:
    """What a step found; that it ended badly, or not at all, is a fault of its own."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Done(Counter(), [f"the step hangs: {err.strip()[-500:]}"])
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    try:
        found = json.loads(out.splitlines()[-1])
        return Done(Counter(found["counts"]), found["faults"], found["measured"])
    except (IndexError, ValueError):
        return Done(Counter(), [f"the step ended with {process.returncode}: {err.strip()[-1000:]}"])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def carry_out(kind: str, seed: int, number: int, folder: Path, seconds: float) -> Done:
    """One step, in this process."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        return KINDS[kind].step(Turn(random.Random(f"{seed}:{kind}:{number}"), number, folder.resolve(), seconds))
    except Exception:  # the top: a fault is what this looks for
        return Done(Counter(), [traceback.format_exc()])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8"]
    done: Any = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return str(done.stdout.strip() or "unknown")


if __name__ == "__main__":
    sys.exit(main())
