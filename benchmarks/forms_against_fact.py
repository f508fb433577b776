"""Compares what `moeinf fit` says of the forms of a checkpoint, before any is stored, with what is then measured.

    moeinf doctor --again
    python benchmarks/forms_against_fact.py CHECKPOINT --quant keep --quant q8_0 --quant q4_k --quant q3_k

Of each form: fit, pull, bench, and rm. Prints a row of a Markdown table for each, forecast first: the bytes of all
weights and those that are stored, the memory that is planned and the most that an answer took (`run`: `bench`
takes more, to measure the machine), tokens/s of decoding and of a prompt. The store is MOEINF_HOME's; it has one form
at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import resources
from typing import Any, NamedTuple

from moeinf.config.environment import store_home
from moeinf.store.library import Library

PROMPT_TOKENS = 512
PROMPT_CHARS = 2000  # about as many tokens
HEAD = (
    "| form | disk, MB | off by | memory, MB | off by | decode, tokens/s | off by | prefill, tokens/s | off by |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


class Ran(NamedTuple):
    out: str
    peak_bytes: int  # of memory, as the kernel counts it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--quant", action="append", required=True)
    parser.add_argument("--ram", help="what bench and fit are given; without it the memory that is free")
    parser.add_argument("--decode", default="64")
    parser.add_argument("--repeats", default="3")
    given = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(HEAD)
    for quant in given.quant:
        print(row(given.checkpoint, quant, given), flush=True)
    print(f"load after: {os.getloadavg()[0]:.1f}", file=sys.stderr)


def row(checkpoint: str, quant: str, given: argparse.Namespace) -> str:
    name, ram = f"forms-against-fact:{quant}", ["--ram", given.ram] if given.ram else []
    forecast = json.loads(moeinf("fit", checkpoint, "--quant", quant, *ram, "--json").out)
    moeinf("pull", checkpoint, "--quant", quant, "--name", name, "-q")
    stored = Library(store_home()).find(name)
    try:
        weights = stored.dense_bytes + sum(stored.shard_sizes)
        size = ["-p", str(PROMPT_TOKENS), "-n", given.decode, "-r", given.repeats]
        ran = moeinf("bench", name, *size, *ram, "--device", "cpu", "-o", "json", "-q")
        text = resources.files("moeinf").joinpath("data/bench_text.txt").read_text(encoding="utf-8")[:PROMPT_CHARS]
        peak = moeinf("run", name, text, "-n", given.decode, "--raw", *ram, "--device", "cpu", "-q").peak_bytes
    finally:
        moeinf("rm", name)
    rows: dict[str, Any] = {each["test"][:2]: each for each in json.loads(ran.out) if not each["cold"]}
    planned = forecast["memory"]["total_bytes"]
    cells = [quant, *told(forecast["store_bytes"] / 1e6, weights / 1e6)]
    cells += told(planned / 1e6, peak / 1e6)
    for test, key in (("tg", "decode"), ("pp", "prefill")):
        cells += told(forecast[f"{key}_tokens_per_s"], rows[test]["median_ts"])
    return f"| {' | '.join(cells)} |"


def told(said: float, fact: float) -> tuple[str, str]:
    return f"{said:.4g} / {fact:.4g}", f"{said / fact - 1:+.1%}"


def moeinf(*words: str) -> Ran:
    """Raises SystemExit where the command fails."""
    with subprocess.Popen([sys.executable, "-m", "moeinf", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"moeinf {' '.join(words)}: exit code {process.returncode}")
    return Ran(out, used.ru_maxrss * 1024)


if __name__ == "__main__":
    main()
