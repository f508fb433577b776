"""Seconds that the vision tower of a stored model takes for one picture, and in what: a line for each run.

    MOEINF_HOME=... python benchmarks/picture_time.py MODEL [--side 1024] [--isa avx512bf16] [--save FILE.npy]

make_store.py makes a model of random weights from the config.json of one that sees. The picture is of noise, a square
of so many pixels a side. --save keeps the rows that the tower gives; --like compares them with what another run kept:
the least and the mean cosine of rows, and the largest difference as a share of the largest number.
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import numpy as np
import PIL.Image

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.model import Model
from moeinf.engine.vision.encoder import required
from moeinf.engine.vision.parts import GivenPicture
from moeinf.hardware import cpu_name
from moeinf.store.library import Library


def picture(side: int) -> bytes:
    """A PNG file of coarse noise."""
    coarse = np.random.default_rng(0).integers(0, 256, (side // 8, side // 8, 3)).astype(np.uint8)
    into = io.BytesIO()
    PIL.Image.fromarray(coarse.repeat(8, 0).repeat(8, 1)).save(into, "PNG")
    return into.getvalue()


def alike(rows: np.ndarray, others: np.ndarray) -> str:
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(others, axis=1)
    cosines = (rows * others).sum(1) / lengths
    apart = np.abs(rows - others).max() / np.abs(others).max()
    return f"cosine of rows at least {cosines.min():.7f}, mean {cosines.mean():.7f}; apart by {apart:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--isa", default="")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--like", type=Path)
    given = parser.parse_args()
    stored = Library(store_home()).find(given.model)
    config = RuntimeConfig.of(context=2048, isa=given.isa, threads=given.threads)
    with Model(stored, config) as model:
        encoder = required(model.generator.prompts.vision_encoder)
        for _ in range(given.repeats):
            begun = time.perf_counter()
            used = time.process_time()
            prepared = encoder.prepared(GivenPicture("noise", picture(given.side)))
            decoded = time.perf_counter()
            [soft] = encoder.placed([], [prepared], 0).pictures
            rows = soft.rows()
            ended, used = time.perf_counter(), time.process_time() - used
            encoder.placed([], [], None)  # forgets the rows
            where = f"{cpu_name()}, {model.generator.runner.arithmetic}"
            what = f"{len(rows)} tokens of {sum(len(each.values) for each in prepared.views)} patches"
            parts = f"decoding and patches {decoded - begun:.2f} s, tower {ended - decoded:.2f} s"
            print(f"{where}: {what}; {parts}; CPU time of both {used:.2f} s", flush=True)
    if given.save:
        np.save(given.save, rows)
    if given.like:
        print(alike(rows, np.load(given.like)))


if __name__ == "__main__":
    main()
