"""Gives one request after the other up at a place of Python, or at an allocation, and asks again."""

from __future__ import annotations

import math
import os
import random
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.support.faults.native import allocation_refused, num_allocations
from tests.support.faults.python import places
from tests.support.faults.subjects import Asked, Subject

ERRORS = (KeyboardInterrupt, MemoryError)
PLACES = ("calls", "lines", "allocations")


def sweep(
    subject: Subject, home: Path, seed: int, cases: int, seconds: float = math.inf, at: str = "calls"
) -> tuple[Counter[str], list[str]]:
    """How many cases ended how, and the faults."""
    rng, counts, faults, started = random.Random(seed), Counter[str](), list[str](), time.monotonic()
    asked, before = subject.open(home), held()
    total = _places_of(asked, at)
    for number in range(cases):
        if time.monotonic() - started > seconds:
            break
        if rng.random() < 0.75:
            asked.model.generator.sequences.last.forget()
        # the cases are spread over the request, so that a few see all parts of it
        share = (number % 16 + rng.random()) / 16
        ended, place = given_up(asked, 1 + int(share * total), rng.choice(ERRORS), at)
        counts[ended] += 1
        try:
            asked.check(rng.randrange(2))
        except BaseException:
            faults.append(f"{ended} at {place}\n{traceback.format_exc(limit=-3)}")
            asked.close()
            asked = subject.open(home)
    asked.close()
    if not faults and (after := held()) > before:
        faults.append(f"descriptors and threads: {before} before, {after} after")
    return counts, faults


def _places_of(asked: Asked, at: str) -> int:
    asked.model.generator.sequences.last.forget()
    if at == "allocations":
        with allocation_refused(0):
            asked.ask(asked.prompts[0])
            return num_allocations()
    with places(lines=at == "lines") as counting:
        asked.ask(asked.prompts[0])
    return counting.count


def given_up(
    asked: Asked, number: int, error: type[BaseException], at: str = "calls", within: str = ""
) -> tuple[str, str]:
    """How a request ended that met an error at its place of that number, and where that is."""
    if at == "allocations":
        return _refused(asked, number), f"allocation {number}"
    with places(number, error, lines=at == "lines", within=within) as counting:
        try:
            asked.ask(asked.prompts[0])
        except error:
            return error.__name__, counting.reached
        except BaseException as other:
            return f"{type(other).__name__} for {error.__name__}: {other}", counting.reached
    return "swallowed" if counting.reached else "over before", counting.reached


def _refused(asked: Asked, number: int) -> str:
    try:
        with allocation_refused(number):
            asked.ask(asked.prompts[0])
    except MemoryError:
        return "MemoryError"
    return "done without"


def held() -> tuple[int, int]:
    """Open files and threads of the process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()
