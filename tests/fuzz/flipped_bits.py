"""Flips bits of a stored model one at a time: each is found, or changes no logit.

    python tests/fuzz/flipped_bits.py [--seconds 600 | --flips 1000] [--seed 1] [--model demo]

Every flip is made in a copy of the store, then undone. The model answers a prompt greedily, in turn with all experts in
memory and with a fifth of them, native and pure reader, every read checked or the first; its logits are compared with
those of the sound store, bit for bit. Half of the flips are anywhere in the bytes, half are spread evenly over the
files, so that small ones are hit. Prints how many ended in which way; exits 1 where a flip changed an answer unseen, or
ended in anything but one line.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.errors import MoeinfError
from moeinf.pull.pull import ensure
from moeinf.store.library import Library
from moeinf.types import Float32Array

PROMPT = "The king said, that he would go to the sea"
TOKENS = 8
WAYS: tuple[dict[str, Any], ...] = (
    {"expert_cache": "20%"},
    {},
    {"expert_cache": "20%", "reader": "pure"},
    {"expert_cache": "20%", "verify_reads": True},
    {"expert_cache": "40%", "prefetch": False, "direct_io": False},
)


class Greedy:
    """Chooses the likeliest token and keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[Float32Array] = []

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        self.logits.append(logits.copy())
        return int(logits.argmax())


def answer(home: Path, name: str, way: dict[str, Any]) -> list[Float32Array]:
    """The logits of each token, through everything that a run goes through."""
    chooser = Greedy()
    with Model(Library(home).find(name), RuntimeConfig.of(device="cpu", threads=1, **way)) as model:
        for _ in model.generator.tokens(model.encode(PROMPT), chooser, TOKENS, GenerationStats()):
            pass
    return chooser.logits


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def outcome(home: Path, name: str, way: dict[str, Any], sound: list[Float32Array]) -> str:
    """In one word or two; capitals for what must not be."""
    try:
        found = answer(home, name, way)
    except MoeinfError as error:
        return "found" if "\n" not in str(error) else "SEVERAL LINES"
    except Exception:  # the top: a fault is what this looks for
        traceback.print_exc()
        return "UNEXPECTED"
    same = len(found) == len(sound) and all(np.array_equal(a, b) for a, b in zip(found, sound, strict=True))
    return "without effect" if same else "UNSEEN"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--flips", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="demo")
    given = parser.parse_args()
    generator, counts, started = random.Random(given.seed), Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        name = ensure(given.model, home=home).name
        sound = answer(home, name, WAYS[0])
        files = sorted(path for path in home.rglob("*") if path.is_file() and path.stat().st_size)
        sizes = [path.stat().st_size for path in files]
        pristine = Path(folder) / "pristine"
        shutil.copytree(home, pristine)
        for number in range(given.flips):
            if time.monotonic() - started > given.seconds:
                break
            path = generator.choices(files, sizes)[0] if number % 2 else files[number // 2 % len(files)]
            bit, way = generator.randrange(8 * path.stat().st_size), WAYS[number % len(WAYS)]
            flip(path, bit)
            what = outcome(home, name, way, sound)
            counts[what] += 1
            if what.isupper():
                print(f"{what}: bit {bit} of {path.name}, {way}", flush=True)
            shutil.rmtree(home)  # a run writes beside the model, too
            shutil.copytree(pristine, home)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())), f"of {counts.total()} flipped bits")
    return int(any(what.isupper() for what in counts))


if __name__ == "__main__":
    sys.exit(main())
