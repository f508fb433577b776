"""The simulated world of cextensions/tests/world: a program that plays one seed after the other."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.support.campaign.step import Done, Turn

ROOT: Final = Path(__file__).parents[3]
_BUILD: Final = ROOT / "build" / "simulate"
_OPERATIONS: Final = 2_000_000  # of one run of the program


def built() -> Path:
    """The program, compiled anew where its sources have changed."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(_BUILD), "-DMOEINF_NATIVE_TESTS=ON", "--log-level=WARNING"]
    for command in (configure, ["cmake", "--build", str(_BUILD), "--target", "simulate"]):
        subprocess.run(command, check=True, capture_output=True)
    return _BUILD / "simulate"


def worlds(turn: Turn) -> Done:
    """Worlds of seeds that follow a random one. A fault names its world, which `simulate SEED 1` plays again."""
    program, counts, faults = str(built()), Counter[str](), list[str]()
    seed, begun = turn.rng.randrange(1 << 40), time.monotonic()
    while not counts or time.monotonic() - begun < turn.seconds:
        done = subprocess.run([program, str(seed), str(_OPERATIONS)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            faults.append(f"{program} {seed} {_OPERATIONS}: {done.stdout.strip()} {done.stderr.strip()}")
            failed = re.match(r"FAILED seed (\d+)", done.stdout)
            if failed is None:
                break
            counts["worlds: that failed"] += 1
            seed = int(failed[1]) + 1
            continue
        found = {what: int(count) for count, what in re.findall(r"(\d+) ([a-z ]+)", done.stdout)}
        counts.update({f"world: {what}": count for what, count in found.items()})
        seed += found["worlds"]
    return Done(counts, faults)
