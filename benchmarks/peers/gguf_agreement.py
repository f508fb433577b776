"""The same GGUF file in moeinf and in llama.cpp: how far the logits are apart, beside llama.cpp's own spread.

    python benchmarks/peers/gguf_agreement.py FILE.gguf ... --text held-out.txt --tokens 2000

The spread is what llama.cpp with and without --no-repack differ by. Differences are root mean squares of logits whose
mean was taken away, as a share of their standard deviation; --rows feeds moeinf that many tokens at a time (up to 8
take the path of decoding). Prints Markdown. moeinf indexes the file in MOEINF_HOME, and reads it where it lies.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from quality import Chunks, Engine, Gguf, Stored, agreement, divergences, read_chunks, score

from moeinf.config.environment import store_home
from moeinf.store.library import Library

Logits = npt.NDArray[np.float64]


def indexed(path: Path) -> str:
    """The name under which moeinf has the file."""
    subprocess.run([sys.executable, "-m", "moeinf", "pull", str(path)], check=True, capture_output=True)
    return next(
        model.name for model in Library(store_home()).list() if model.manifest.source.location == str(path.resolve())
    )


class Heard:
    """An engine that keeps the logits which were asked of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.size_bytes, self.logged = engine, engine.size_bytes, list[Logits]()

    def logits(self, ids: Sequence[int]) -> Any:
        found = np.asarray(self._engine.logits(ids), np.float64)
        self.logged.append(found - found.mean(axis=1, keepdims=True))
        return found

    def close(self) -> None:
        self._engine.close()

    def scored(self, chunks: Chunks) -> Any:
        with closing(self):
            return score(self, chunks)


def apart(one: Sequence[Logits], other: Sequence[Logits]) -> float:
    a, b = np.concatenate(one), np.concatenate(other)
    return float(np.sqrt(((a - b) ** 2).mean()) / a.std())


def row(path: Path, given: argparse.Namespace, chunks: Chunks) -> str:
    ours = Heard(Stored(indexed(path), given.context, given.threads, given.rows or given.context))
    peer = Heard(Gguf(path, given.context, given.threads))
    plain = Heard(Gguf(path, given.context, given.threads, repack=False))
    found, theirs, unpacked = (each.scored(chunks) for each in (ours, peer, plain))
    cells = [
        path.name,
        f"{100 * min(apart(ours.logged, each.logged) for each in (peer, plain)):.3f} %",
        f"{100 * apart(peer.logged, plain.logged):.3f} %",
        f"{divergences(unpacked, found).mean():.6f}",
        f"{divergences(unpacked, theirs).mean():.6f}",
        f"{100 * agreement(unpacked, found):.2f} %",
        f"{100 * agreement(unpacked, theirs):.2f} %",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, help="tokens a forward pass of moeinf; default: the whole chunk")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    chunks = read_chunks(given.text, given.context, given.tokens)
    print(f"{len(chunks)} chunks of {given.context} tokens; moeinf, then llama.cpp's spread\n")
    print("| file | logits apart | spread | KL | KL of the spread | same top token | of the spread |")
    print("|---|---|---|---|---|---|---|")
    for path in given.files:
        print(row(path, given, chunks), flush=True)


if __name__ == "__main__":
    main()
