"""Calls everything that moeinf._native binds with values that nobody meant: each returns, or raises what it may.

    cextensions/tests/python.sh address -m tests.fuzz.native_calls [--seconds 200 | --cases 500] [--seed 1] [--case 17]

A case is a few calls of the rows of tests/support/native, in any order and on objects that they share; of the sound
arguments some are mutated. Behind them, sound calls have to give what is right. Cases run in processes that are ended
by a fault or after a minute of one case: what such a case was calling is told, and the next process goes on behind it.
Exits 1 at a fault.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from moeinf import _native
from tests.support.native.hostile import mutated
from tests.support.native.rows import GROUPS
from tests.support.native.table import ROWS, Errors, Row, World

CASES_OF_PROCESS, CALLS_OF_CASE, HANG_S = 500, 10, 60
ENOUGH_CASES = 10_000  # that of each row some calls are refused, and some return
ADDRESS_BYTES = 1 << 30  # above what the process has at its start: what takes more is a MemoryError
ALWAYS: Errors = (TypeError, MemoryError, AttributeError)  # of an argument that is of another type
UNSOUND: Errors = (
    *ALWAYS,
    ValueError,
    IndexError,
    OSError,
    _native.CudaError,
)  # of objects that hostile calls have left


class Note:
    """What a process tells those that outlive it: its case, what it calls, and how the calls of each row ended."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 << 16)  # shared with the processes that are forked
        self._numbers = {name: place for place, name in enumerate(ROWS)}
        end = 8 * (2 + 2 * len(ROWS))
        self._counts, self._text = memoryview(self._memory)[:end].cast("q"), memoryview(self._memory)[end:]

    def write(self, text: str) -> None:
        self._text[:] = text.encode("utf-8", "backslashreplace")[: len(self._text)].ljust(len(self._text), b"\0")

    def read(self) -> str:
        return bytes(self._text).rstrip(b"\0").decode("utf-8", "replace")

    @property
    def case(self) -> int:
        return self._counts[0]

    @case.setter
    def case(self, number: int) -> None:
        self._counts[0] = number

    @property
    def faults(self) -> int:
        return self._counts[1]

    def fault(self, text: str) -> None:
        self._counts[1] += 1
        print(f"FAULT: {text}", flush=True)

    def ended(self, row: Row, *, returned: bool) -> None:
        self._counts[2 + 2 * self._numbers[row.name] + returned] += 1

    def ends(self, *, returned: bool) -> dict[str, int]:
        """By row, how many calls have returned, or raised what they may."""
        return {name: self._counts[2 + 2 * place + returned] for name, place in self._numbers.items()}


class Case:
    def __init__(self, given: argparse.Namespace, number: int, folder: Path, note: Note) -> None:
        self.rng, self.note, self.folder = random.Random(f"{given.seed}:{number}"), note, folder
        self.groups, self.told = given.rows, f"--seed {given.seed} --case {number} --rows {' '.join(given.rows)}"

    def run(self) -> None:
        """Raises AssertionError for what no call may end in."""
        names = GROUPS[self.rng.choice(self.groups)]
        with World(self.rng, self.folder) as world:
            self._called(names, world)
            self._sound(names, world)

    def _called(self, names: list[str], world: World) -> None:
        calls: list[str] = []
        for _ in range(CALLS_OF_CASE):
            row = ROWS[self.rng.choice(names)]
            try:
                given = row.arguments(world)
                on = world.get(row.of_class) if row.of_class else None
            except row.errors + UNSOUND:
                continue
            for name in self._hit(row, given):
                few = row.tried.get(name)
                given[name] = self.rng.choice(few) if few else mutated(given[name], self.rng, given)
            if self.rng.random() < 0.01 and on is not None:
                on = on.__class__.__new__(on.__class__)  # without its constructor
            calls.append(f"{row.name}({', '.join(f'{name}={_shown(each)}' for name, each in given.items())})")
            self.note.write(f"{self.told}: {' | '.join(calls)}")
            self._call(row, on, given, world)

    def _hit(self, row: Row, given: dict[str, Any]) -> list[str]:
        names = [name for name in given if row.tried.get(name) != ()]
        return self.rng.sample(names, min(len(names), self.rng.choice([0, 1, 1, 1, 2, 3])))

    def _call(self, row: Row, on: Any, given: dict[str, Any], world: World) -> None:
        try:
            result = _run(row, on, given)
        except row.errors + ALWAYS as error:
            self.note.ended(row, returned=False)
            assert "\n" not in str(error) or isinstance(error, TypeError), "a message is one line"
            return
        self.note.ended(row, returned=True)
        if row.of_class is None and isinstance(getattr(_native, row.name), type) and self.rng.random() < 0.7:
            world.made[row.name] = result

    def _sound(self, names: list[str], before: World) -> None:
        """What sound arguments give is right, with the threads that have seen the others."""
        known = [ROWS[name] for name in names if ROWS[name].holds]
        if not known:
            return
        with World(self.rng, self.folder) as world:
            if "Kernels" in before.made:
                world.made["Kernels"] = before.made["Kernels"]
            row = self.rng.choice(known)
            self.note.write(f"{self.told}: sound {row.name} behind {self.note.read()}")
            given = row.arguments(world)
            result = _run(row, world.get(row.of_class) if row.of_class else None, given)
            self.note.ended(row, returned=True)
            assert row.holds and row.holds(given, result), f"{row.name} gave what is wrong: {result!r}"


def _run(row: Row, on: Any, given: dict[str, Any]) -> Any:
    if on is None:
        return getattr(_native, row.name)(**given)
    found = getattr(on, row.name.partition(".")[2])
    result = found(**given) if callable(found) and "clock" not in row.name else found
    if row.name == "Visit.arrivals":
        return next(result, None)
    return result


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}{value.ravel()[:6].tolist() if value.size else ''}"
    return repr(value)[:200]


def _process(given: argparse.Namespace, first: int, end: int, until: float, note: Note, folder: Path) -> None:
    """Runs cases; never returns."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ADDRESS_BYTES, held + ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    errors = os.open(folder / "errors", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(errors, 2)
    faulthandler.enable()
    for number in range(first, end):
        note.case = number
        if time.monotonic() > until:
            break
        os.ftruncate(2, 0)
        signal.alarm(HANG_S)
        try:
            Case(given, number, folder, note).run()
        except BaseException:  # the top: a fault is what this looks for
            note.fault(f"{note.read()}\n{traceback.format_exc()}")
        signal.alarm(0)
        note.case = number + 1
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    parser.add_argument("--rows", nargs="+", choices=GROUPS, default=list(GROUPS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    note, until = Note(), time.monotonic() + given.seconds
    first, end = (0, given.cases) if given.case is None else (given.case, given.case + 1)
    start = first
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while first < end and time.monotonic() < until:
            last = min(end, first + CASES_OF_PROCESS)
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _process(given, first, last, until, note, folder)
            _, status = os.waitpid(pid, 0)
            first = note.case
            if status != 0:
                how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {status >> 8}"
                note.fault(f"{how}: {note.read()}\n{(folder / 'errors').read_text(errors='replace')}")
                first += 1
    returned, raised = (note.ends(returned=each) for each in (True, False))
    print(f"{first - start} cases, {sum(returned.values())} calls returned, {sum(raised.values())} were refused")
    if first - start >= ENOUGH_CASES and given.rows == list(GROUPS):
        silent = [name for name, row in ROWS.items() if row.refuses and not raised[name]]
        unheard = [name for name in ROWS if not returned[name] and name != "ExpertReads"]
        if silent or unheard:
            note.fault(f"nothing was refused by {silent}, and nothing returned from {unheard}")
    print(f"; {note.faults} faults", flush=True)
    return int(note.faults > 0)


if __name__ == "__main__":
    sys.exit(main())
