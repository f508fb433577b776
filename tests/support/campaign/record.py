"""What steps of the campaign have found, a line of JSON each, in a file that a kill at any time leaves readable."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.campaign.step import Done


class Record:
    """The lines of a file; a line that was torn, which is the last one, is cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds, self._next = Counter[str](), Counter[tuple[str, int]]()
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(path, len(whole))
        self.steps: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        for step in self.steps:
            self._count(step)

    def seconds(self, kind: str) -> float:
        """How long steps of this kind took so far."""
        return self._seconds[kind]

    def next_step(self, kind: str, seed: int) -> int:
        return self._next[kind, seed]

    def add(self, kind: str, seed: int, number: int, commit: str, seconds: float, done: Done) -> None:
        """Notes a step, for good before it returns."""
        step = {"kind": kind, "seed": seed, "step": number, "commit": commit, "seconds": round(seconds, 1)}
        step |= {"ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "counts": dict(done.counts)}
        step |= {"faults": done.faults, "measured": done.measured}
        with self._path.open("ab") as file:
            file.write(json.dumps(step).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.steps.append(step)
        self._count(step)

    def _count(self, step: dict[str, Any]) -> None:
        self._seconds[step["kind"]] += step["seconds"]
        key = step["kind"], step["seed"]
        self._next[key] = max(self._next[key], step["step"] + 1)
