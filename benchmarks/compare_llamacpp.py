"""moeinf beside llama.cpp: same weights, same token ids, same threads, same memory limit, alternating.

    python benchmarks/compare_llamacpp.py MODEL FILE.gguf --limit 1.7GiB --rounds 3

MODEL is a stored model made from the checkpoint of make_checkpoint.py, FILE.gguf what to_gguf.py made of the same.
--limit puts each process into a memory control group (version 1, needs root) and drops the page cache before it.
Prints a Markdown table, and what moeinf says of its last decode.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from moeinf.config import parse_size, store_home
from moeinf.store.library import Library

GROUP = Path("/sys/fs/cgroup/memory/moeinf-bench")
HERE = Path(__file__).parent


def limited(command: list[str], limit: int | None) -> str:
    """Output of a command run within `limit` bytes of memory. Raises CalledProcessError."""
    if limit is None:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(limit))
    Path("/proc/sys/vm/drop_caches").write_text("3")

    def join() -> None:
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=join).stdout


def passages(folder: Path, prompt: int, decode: int, count: int) -> list[tuple[list[int], list[int]]]:
    """The same cuts of the same text as moeinf.bench.live makes."""
    text = resources.files("moeinf").joinpath("data/bench_text.txt").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    size = prompt + decode
    ids = ids * (-(-size * count // len(ids)))
    return [(ids[s : s + prompt], ids[s + prompt : s + size]) for s in range(0, size * count, size)]


def rates(rounds: list[dict[str, Any]], prompt: int) -> tuple[list[float], list[float]]:
    return [prompt / r["prefill_s"] for r in rounds], [len(r["token_s"]) / sum(r["token_s"]) for r in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("gguf")
    parser.add_argument("--limit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passages", type=int, default=2, help="requests a process; the first is cold")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bench-option", action="append", default=[], help="passed on to moeinf bench")
    given = parser.parse_args()
    limit = parse_size("--limit", given.limit, 0) if given.limit else None
    folder = Library(store_home()).find(given.model).path
    work = {"context": 512, "threads": given.threads,
            "passages": passages(folder, given.prompt, given.decode, given.passages)}
    ours: list[list[dict[str, Any]]] = []
    theirs: list[list[dict[str, Any]]] = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(work, file)
        file.flush()
        for number in range(given.rounds):
            bench = [sys.executable, "-m", "moeinf", "bench", given.model, "-o", "json", "-p", str(given.prompt),
                     "-n", str(given.decode), "-r", str(given.passages - 1), "-t", str(given.threads), "-c", "512"]
            ours.append(json.loads(limited(bench + given.bench_option, limit)))
            peer = [sys.executable, str(HERE / "llamacpp_run.py"), given.gguf, file.name]
            theirs.append(json.loads(limited(peer, limit).splitlines()[-1]))
            print(f"round {number + 1} of {given.rounds} done", file=sys.stderr)
    report(ours, theirs, given.prompt)


def report(ours: list[list[dict[str, Any]]], theirs: list[list[dict[str, Any]]], prompt: int) -> None:
    print("| test | cache | moeinf tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|---|")
    for cold in (True, False):
        group = [r for rounds in theirs for r in (rounds[:1] if cold else rounds[1:])]
        for test, their_rates in zip(("pp", "tg"), rates(group, prompt) if group else ([], []), strict=True):
            rows = [row for rows in ours for row in rows if row["cold"] is cold and row["test"].startswith(test)]
            our_rates = [rate for row in rows for rate in row["samples_ts"]]
            if our_rates and their_rates:
                mine, peer = statistics.median(our_rates), statistics.median(their_rates)
                print(f"| {rows[0]['test']} | {'cold' if cold else 'warm'} | {spread(our_rates)} "
                      f"| {spread(their_rates)} | {mine / peer:.2f} |")
    last = [row for row in ours[-1] if row["test"].startswith("tg")][-1]
    print(json.dumps({k: last[k] for k in ("expert_hit_rate", "stall_s", "total_s", "bytes_per_token", "read_gb_per_s",
                                           "disk_gb_per_s", "peak_rss_bytes", "experts", "profile_ms")}))


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}, n={len(values)})"


if __name__ == "__main__":
    main()
