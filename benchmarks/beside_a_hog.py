"""Runs a model in a control group whose limit is tight, while another process of the group takes memory step by step.

    python benchmarks/beside_a_hog.py NAME --limit-mib 700 --hog-mib 400 --rounds 20

NAME is a stored model larger than what the hog leaves. Each round must end with exit code 0 and the text that the model
gives when it is alone. Needs the right to make control groups (v1 or v2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER = ["--raw", "--json", "--temperature", "0", "--seed", "1"]
# Takes `total` MiB in steps of `step` every 0.2 s, then gives all back, until its input ends.
HOG = """
import select, sys, time
total, step = int(sys.argv[1]), int(sys.argv[2])
while True:
    taken = []
    while len(taken) * step < total:
        taken.append(b"x" * (step << 20))
        time.sleep(0.2)
    print("took it all", flush=True)
    del taken
    if select.select([sys.stdin], [], [], 2.0)[0]:
        break
"""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group of memory, made for this process's children."""

    folder: Path
    limit_file: str

    def limit(self, num_bytes: int) -> None:
        (self.folder / self.limit_file).write_text(str(num_bytes))

    def enter(self) -> None:
        """For the child, before it runs what it is to run."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def num_kills(self) -> int:
        for name in ("memory.events", "memory.oom_control"):
            path = self.folder / name
            for line in path.read_text().splitlines() if path.exists() else ():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0


@contextmanager
def control_group(name: str) -> Iterator[Group]:
    """Below the root of the hierarchy that rules memory. Raises OSError where none can be made."""
    root = Path("/sys/fs/cgroup")
    v1 = root / "memory/memory.limit_in_bytes"
    folder = (root / "memory" if v1.exists() else root) / f"{name}-{os.getpid()}"
    folder.mkdir()
    try:
        limit = "memory.limit_in_bytes" if v1.exists() else "memory.max"
        if not (folder / limit).exists():
            raise OSError(f"{folder} has no {limit}: its parent does not hand memory on")
        yield Group(folder, limit)
    finally:
        folder.rmdir()


def start(group: Group, *arguments: str) -> subprocess.Popen[str]:
    """Python with these arguments, in the group."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        preexec_fn=group.enter,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def answer(group: Group, model: str, num_tokens: int) -> tuple[int, dict[str, Any], str]:
    """(exit code, the answer, standard error) of the command; no answer where it failed."""
    child = start(group, "-m", "moeinf", "run", model, "Once upon a time", "-n", str(num_tokens), *ANSWER)
    out, err = child.communicate("")
    return child.returncode, json.loads(out) if child.returncode == 0 else {}, err.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--limit-mib", type=int, default=700)
    parser.add_argument("--hog-mib", type=int, default=400)
    parser.add_argument("--step-mib", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with control_group("moeinf-hog") as group:
        wanted = answer(group, given.model, given.tokens)[1]["response"]
        group.limit(given.limit_mib << 20)
        good = 0
        for number in range(1, given.rounds + 1):
            hog = start(group, "-c", HOG, str(given.hog_mib), str(given.step_mib))
            code, found, err = answer(group, given.model, given.tokens)
            hog.communicate("")
            caches = [found["stats"][phase] for phase in ("prefill_cache", "decode_cache")] if found else []
            given_back_mib = sum(cache["given_back_bytes"] for cache in caches) >> 20
            same = found.get("response") == wanted
            good += same
            print(
                f"round {number}: exit code {code}, {'the same' if same else 'ANOTHER'} text, {given_back_mib} MiB "
                f"given back, {group.num_kills()} kills so far; {err}",
                flush=True,
            )
    print(f"{good} of {given.rounds} rounds are good")


if __name__ == "__main__":
    main()
