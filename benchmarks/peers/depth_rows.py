"""One GGUF file on moeinf, llama.cpp, ik_llama.cpp and mistral.rs, all in memory, behind 0 to 32,000 tokens, by turns.

    python benchmarks/peers/depth_rows.py measure OUT.json FILE.gguf ... --llama-cpp DEPTHS --ik DEPTHS
        --mistralrs PYTHON [--depths 0,512,8000,32000] [--rounds 2] [--before COMMAND] [--machine TEXT]
    python benchmarks/peers/depth_rows.py table OUT.json [--memory 40-60]

DEPTHS is depths.cc built for that engine, which runs twice, with weights repacked at load and without; PYTHON is one
that has the package mistralrs. Each measurement is a process of its own, every other round in the opposite order;
COMMAND is put before each (to have the machine alone), and one during which other programs had a tenth of a
processor or more is run again, at most twice. `measure` adds to what OUT.json holds until each engine has had
ROUNDS processes of each file; `table` prints
Markdown, a line a model: for a prompt of 512 tokens at the beginning, and for 32 decoded one by one behind each depth,
the means of moeinf and of the better way of each of the others, and the ratio to the best; then the share of a plain
read of memory, measured around each process, at which they read weights at the beginning. Where a host's memory is
faster at times, --memory leaves those processes only around which a plain read had so many GB/s, before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compare_llamacpp import weight_bytes_per_token
from processes import Failed, output_of
from side_by_side import row

from moeinf.config import RuntimeConfig
from moeinf.forecast.bandwidth import memory_bytes_per_s

HERE = Path(__file__).parent
OURS = "moeinf"
STEPS, THREADS = 32, 2
DISTURBED = 0.1  # of a processor
TRIES = 3
WAIT_S = 3600  # until the machine is free, too


def commands(file: Path, given: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Engines and what measures them on a file."""
    yield (
        OURS,
        [sys.executable, str(HERE.parent / "long_contexts.py"), str(file), "--depths", given.depths, "--prefill", "0"],
    )
    for name, depths in (("llama.cpp", given.llama_cpp), ("ik_llama.cpp", given.ik)):
        for repack in (1, 0) if depths else ():
            words = [depths, file, THREADS, repack, given.depths, STEPS, 0]
            yield f"{name}{', repacked' if repack else ''}", [str(word) for word in words]
    if given.mistralrs:
        yield "mistral.rs", [given.mistralrs, str(HERE / "mistralrs_run.py"), str(file), given.depths, str(STEPS)]


def measured(command: list[str], before: list[str]) -> dict[str, Any]:
    """What a process says that has the machine alone, or nearly, or of its tries that which was disturbed least."""
    tries: list[dict[str, Any]] = []
    for _ in range(TRIES):
        said = output_of([*before, sys.executable, __file__, "alone", *command], timeout_s=WAIT_S).splitlines()
        *rows, around = [json.loads(line) for line in said if line.startswith("{")]
        tries.append({**around, "rows": rows})
        if around["others"] < DISTURBED:
            break
        print(f"others took {around['others']:.2f} of a processor", file=sys.stderr, flush=True)
    return min(tries, key=lambda each: float(each["others"]))


def alone(command: list[str]) -> None:
    """Runs a command; says what a plain read of memory reaches before and after, and what other programs took."""
    config = RuntimeConfig.of(device="cpu", threads=THREADS)
    memory = [memory_bytes_per_s(config) / 1e9]
    before = others_s(), time.monotonic()
    print(output_of(command))
    others = (others_s() - before[0]) / (time.monotonic() - before[1])
    memory.append(memory_bytes_per_s(config) / 1e9)
    print(json.dumps({"others": round(others, 3), "memory_gb_per_s": [round(rate, 1) for rate in memory]}))


def others_s() -> float:
    """Seconds of processors that went to all but this process and its children."""
    user, nice, system = (int(word) for word in Path("/proc/stat").read_text().split()[1:4])
    own = os.times()
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - sum(own[:4])


def measure(given: argparse.Namespace) -> None:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=HERE)
    held = json.loads(given.out.read_text()) if given.out.exists() else {"runs": []}
    for file in given.files:
        file.read_bytes()  # into the page cache
        about = {"bytes": file.stat().st_size, "bytes_a_token": weight_bytes_per_token(file)}
        held.setdefault("files", {})[file.stem] = about
        turns = list(commands(file, given))
        for number in range(given.rounds):
            for engine, command in reversed(turns) if number % 2 else turns:
                if sum((run["model"], run["engine"]) == (file.stem, engine) for run in held["runs"]) > number:
                    continue
                run = {"model": file.stem, "engine": engine, "commit": commit.stdout.strip()}
                try:
                    run |= measured(command, given.before.split())
                except Failed as failure:
                    print(f"{file.stem}, {engine}: {failure}", file=sys.stderr)
                    continue
                print(file.stem, engine, *(each["decode_ts"] for each in run["rows"]), file=sys.stderr, flush=True)
                held["runs"].append(run)
                held |= {"command": "benchmarks/peers/depth_rows.py", "machine": given.machine or held.get("machine")}
                given.out.write_text(json.dumps(held, indent=1) + "\n")


def rates(runs: list[dict[str, Any]], model: str, engine: str, depth: int, test: str) -> list[float]:
    mine = [each for run in runs if (run["model"], run["engine"]) == (model, engine) for each in run["rows"]]
    # mistral.rs has no prompt of no tokens: its prompt of 512 stands for that at the beginning
    if test == "prefill_ts" and engine == "mistral.rs":
        depth = 512
    return [each[test] for each in mine if each["depth"] == depth and each[test]]


def within(held: dict[str, Any], span: str) -> dict[str, Any]:
    """Of what was measured that around which a plain read of memory had as many GB/s as the span says: FROM-TO."""
    least, most = (float(each) for each in span.split("-"))
    runs = [run for run in held["runs"] if all(least <= rate < most for rate in run.get("memory_gb_per_s", [-1]))]
    models = {run["model"] for run in runs}
    return held | {"runs": runs, "files": {name: each for name, each in held["files"].items() if name in models}}


def table(held: dict[str, Any]) -> Iterator[str]:
    """A line a model: moeinf's mean, that of the better way of each of the others, and the ratio to the best."""
    runs = held["runs"]
    depths = sorted({each["depth"] for run in runs for each in run["rows"]})
    tests = [("prefill 512", 0, "prefill_ts"), *((f"decode at {depth:,}", depth, "decode_ts") for depth in depths)]
    peers = list(dict.fromkeys(name for run in runs if (name := run["engine"].split(",")[0]) != OURS))
    yield row("model", "GB, a token", *(name for name, _, _ in tests), "of a plain read", "rounds")
    yield "|" + "---|" * (len(tests) + 4)
    for model, about in held["files"].items():
        engines = list(dict.fromkeys(run["engine"] for run in runs if run["model"] == model))
        cells = []
        for _, depth, test in tests:
            found = {engine: rates(runs, model, engine, depth, test) for engine in engines}
            means = better(found)
            mine = means.pop(OURS, 0.0)
            cell = f"{shown(mine)} / {', '.join(shown(means.get(each, 0.0)) for each in peers)}"
            cells.append(f"{cell}: **{mine / max(means.values()):.2f}**" if mine and means else cell)
        size = f"{about['bytes'] / 1e9:.2f}, {about['bytes_a_token'] / 1e9:.3f}"
        count = Counter(run["engine"] for run in runs if run["model"] == model)
        yield row(model, size, *cells, shares(held, model, peers), "-".join(map(str, sorted(set(count.values())))))


def better(found: dict[str, list[float]]) -> dict[str, float]:
    """Of each engine the mean of its better way."""
    means: dict[str, float] = {}
    for engine, each in found.items():
        if each:
            name = engine.split(",")[0]
            means[name] = max(means.get(name, 0.0), statistics.fmean(each))
    return means


def shown(rate: float) -> str:
    return (f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}") if rate else "-"


def shares(held: dict[str, Any], model: str, peers: list[str]) -> str:
    """Weights that decoding at the beginning reads a second, as shares of a plain read around each process."""
    used, found = held["files"][model]["bytes_a_token"] / 1e9, defaultdict(list)
    for run in held["runs"]:
        for each in run["rows"] if "memory_gb_per_s" in run else ():
            if run["model"] == model and each["depth"] == 0:
                rate = each["decode_ts"] * used / statistics.fmean(run["memory_gb_per_s"])
                found[run["engine"]].append(rate)
    means = better(found)
    mine, *others = (f"{means[each]:.0%}" if each in means else "-" for each in (OURS, *peers))
    return f"{mine} / {', '.join(others)}"


def main() -> None:
    if sys.argv[1:2] == ["alone"]:
        alone(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["measure", "table"])
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--llama-cpp")
    parser.add_argument("--ik")
    parser.add_argument("--mistralrs")
    parser.add_argument("--depths", default="0,512,8000,32000")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", default="")
    parser.add_argument("--machine", default="")
    parser.add_argument("--memory", default="0-1000", metavar="FROM-TO", help="GB/s of a plain read, for table")
    given = parser.parse_args()
    if given.verb == "measure":
        measure(given)
    else:
        held = json.loads(given.out.read_text())
        print("\n".join(table(held if given.memory == "0-1000" else within(held, given.memory))))


if __name__ == "__main__":
    main()
