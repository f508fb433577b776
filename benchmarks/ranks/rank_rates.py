"""One rank against several on this machine, each with its own limit of memory, reads and threads.

    python benchmarks/ranks/rank_rates.py MODEL --ranks 1,2 --cache 33% --read-limit 200 --device 254:0 --threads 1,1

Control groups of version 1 hold each rank to --read-limit MB/s of the disk with the number --device (`lsblk`): so ranks
that share a disk read as if each had its own. It needs root. Prints a row for each number of ranks, by turns; every
second round goes through them in the opposite order. --routing replays a recorded trace in place of the model's
routers, its first --layers layers where the model is cut in depth; --lookahead-recall is for a trace without guesses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeinf.traces.trace import dumps, load_trace

BLKIO = Path("/sys/fs/cgroup/blkio")
FIRST_PORT = 29600


@contextmanager
def limited(name: str, device: str, bytes_per_s: int) -> Iterator[list[str]]:
    """Words in front of a command that is to read no faster."""
    group = BLKIO / f"moeinf-{name}-{os.getpid()}"
    group.mkdir()
    (group / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_s}")
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    finally:
        group.rmdir()


@contextmanager
def worker(front: Sequence[str], words: Sequence[str]) -> Iterator[None]:
    """A worker, from the moment when it listens."""
    process = subprocess.Popen(
        [*front, sys.executable, "-m", "moeinf", "worker", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        print(process.stderr.readline().strip(), file=sys.stderr)
        yield
    finally:
        process.kill()
        process.wait()


def measured(given: argparse.Namespace, num_ranks: int, threads: int, key: Path) -> list[dict[str, Any]]:
    """Rows of `moeinf bench` on so many ranks."""
    shared = ["--expert-cache", given.cache, "--threads", str(threads)]
    with ExitStack() as stack:
        fronts = [
            stack.enter_context(limited(f"rank{rank}", given.device, int(given.read_limit * 1e6)))
            for rank in range(num_ranks)
        ]
        addresses = [f"127.0.0.1:{FIRST_PORT + rank}" for rank in range(1, num_ranks)]
        for front, address in zip(fronts[1:], addresses, strict=True):
            words = [given.model, "--bind", address, "--key-file", str(key), *shared]
            stack.enter_context(worker(front, words))
        words = ["--num-prompt", str(given.num_prompt), "--num-decode", str(given.num_decode), "--repeats", "1"]
        words += ["--output", "json", "--quiet", *shared]
        if given.routing is not None:
            words += ["--routing", str(given.routing)]
        if given.lookahead_recall is not None:
            words += ["--lookahead-recall", str(given.lookahead_recall)]
        if addresses:
            words += ["--workers", ",".join(addresses), "--worker-key-file", str(key)]
        command = [*fronts[0], sys.executable, "-m", "moeinf", "bench", given.model, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def first_layers(trace_folder: Path, num_layers: int, folder: Path) -> Path:
    """Writes a trace of the first layers alone into the folder; returns where."""
    trace = load_trace(trace_folder)
    cut = replace(
        trace,
        shape=replace(trace.shape, num_layers=num_layers),
        experts=trace.experts[:, :num_layers],
        weights=None if trace.weights is None else trace.weights[:, :num_layers],
        guesses=None if trace.guesses is None else trace.guesses[:, :num_layers],
        guess_weights=None if trace.guess_weights is None else trace.guess_weights[:, :num_layers],
    )
    written = folder / trace_folder.resolve().name
    written.mkdir()
    (written / "routing.npz").write_bytes(dumps(cut))
    return written


def show(rows: Sequence[dict[str, Any]], what: str) -> None:
    for row in rows:
        laps = " ".join(f"{name} {ms:.2f}" for name, ms in row["profile_ms"].items())
        print(
            f"{what}: {row['test']} {'cold' if row['cold'] else 'warm'} {row['avg_ts']:.2f} tokens/s, hit "
            f"{100 * row['expert_hit_rate']:.1f} %, {row['bytes_per_token'] / 2**20:.1f} MiB/token, "
            f"stall {row['stall_s']:.2f} s{laps and f', ms a token: {laps}'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--threads", default="2,1", help="of each rank, for each number of ranks")
    parser.add_argument("--cache", default="33%")
    parser.add_argument("--read-limit", type=float, default=200.0)
    parser.add_argument("--device", required=True)
    parser.add_argument("--num-prompt", type=int, default=128)
    parser.add_argument("--num-decode", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--routing", type=Path, help="folder of a trace that is replayed")
    parser.add_argument("--layers", type=int, help="of the trace, the first ones")
    parser.add_argument("--lookahead-recall", type=float)
    given = parser.parse_args()
    counts = [int(each) for each in given.ranks.split(",")]
    threads = [int(each) for each in given.threads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_bytes(os.urandom(32).hex().encode())
        if given.routing is not None and given.layers is not None:
            given.routing = first_layers(given.routing, given.layers, Path(folder))
        for number in range(given.rounds):
            sides = list(zip(counts, threads, strict=True))
            for num_ranks, num_threads in sides[:: -1 if number % 2 else 1]:
                rows = measured(given, num_ranks, num_threads, key)
                show(rows, f"{num_ranks} rank(s) x {num_threads} thread(s)")


if __name__ == "__main__":
    main()
