"""One rank against several on this machine, each with its own limit of memory, reads and threads.

    python benchmarks/rank_rates.py MODEL --ranks 1,2 --cache 33% --read-limit 200 --device 254:0 --threads 1,1

Control groups of version 1 hold each rank to --read-limit MB/s of the disk with the number --device (`lsblk`): so ranks
that share a disk read as if each had its own. It needs root. Prints a row for each number of ranks, by turns.
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
from pathlib import Path

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


def measured(given: argparse.Namespace, num_ranks: int, threads: int, key: Path) -> list[dict[str, float]]:
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
        if addresses:
            words += ["--workers", ",".join(addresses), "--worker-key-file", str(key)]
        command = [*fronts[0], sys.executable, "-m", "moeinf", "bench", given.model, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, float]] = json.loads(done.stdout)
    return rows


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
    given = parser.parse_args()
    counts = [int(each) for each in given.ranks.split(",")]
    threads = [int(each) for each in given.threads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_bytes(os.urandom(32).hex().encode())
        for _ in range(given.rounds):
            for num_ranks, num_threads in zip(counts, threads, strict=True):
                for row in measured(given, num_ranks, num_threads, key):
                    print(
                        f"{num_ranks} rank(s) x {num_threads} thread(s): {row['test']} "
                        f"{'cold' if row['cold'] else 'warm'} {row['avg_ts']:.2f} tokens/s, hit at rank 0 "
                        f"{100 * row['expert_hit_rate']:.1f} %, stall {row['stall_s']:.2f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
