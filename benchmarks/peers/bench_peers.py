"""GGUF files on moeinf and on the engines that pip installs, by turns; writes docs/benchmarks.md and its picture.

    make bench-peers                                # Qwen3-30B-A3B's geometry cut to 4 layers, half an hour
    make bench-peers FILES="A.gguf B.gguf"          # files of your own, of real weights
    make bench-peers PEERS="--only-page"            # the page once more, from what was measured

Each file runs with memory for all of it, and held to a third of its size by a control group (as root; else left out).
Each measurement is a process of its own, a round runs every engine once, and every other round in the opposite order.
The first request of a process is a prompt of 512 tokens and 32 behind it, and what is told is the one after it, whose
prompt is another. llama.cpp runs with weights repacked at load and as they lie in the file; the better way counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from compare_llamacpp import weight_bytes_per_token, weights_per_token
from processes import Failed, can_limit, output_of, passages
from side_by_side import row

from moeinf import _native
from moeinf.config.environment import store_home
from moeinf.store.library import Library
from moeinf.terminal.traces.picture import save_picture
from moeinf.types import format_bytes

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RESULT, PAGE, PICTURE = (
    ROOT / path for path in ("benchmarks/results/peers/peers.json", "docs/benchmarks.md", "docs/peers.svg")
)
OURS, LLAMA, MISTRAL = "moeinf", "llama.cpp", "mistral.rs"
PROMPT, DECODE = 512, 32
SLOW_TS = 1.0  # an engine that decodes more slowly with all the memory runs once
ALL, THIRD = "all of it", "a third"
TIMEOUT_S = 300  # for a process; what a third of the memory makes slower than that is named


@dataclass(frozen=True)
class Run:
    """What one process said: tokens a second of its second request, or why it failed."""

    file: str
    memory: str  # ALL or THIRD
    engine: str  # and the way it ran, behind a comma
    prefill_ts: float = 0.0
    decode_ts: float = 0.0
    peak_rss_bytes: int = 0
    failed: str = ""
    more: dict[str, float] | None = None  # of moeinf: rates of memory and disk, what was read


@dataclass(frozen=True)
class Setting:
    """A file on a machine."""

    path: Path
    name: str  # of the stored model, which reads the file where it lies
    folder: Path  # of that model
    threads: int
    peers: str  # the Python that has their packages

    def moeinf(self, limit: int | None) -> Run:
        words = [
            "-p",
            PROMPT,
            "-n",
            DECODE,
            "-r",
            1,
            "-t",
            self.threads,
            "-c",
            PROMPT + DECODE + 64,
            "-q",
            "-o",
            "json",
        ]
        whole = ["--expert-cache", "100%"] if limit is None else []
        command = [sys.executable, "-m", "moeinf", "bench", self.name, *map(str, words), *whole]
        rows = {each["test"][:2]: each for each in json.loads(output_of(command, limit, TIMEOUT_S)) if not each["cold"]}
        decode = rows["tg"]
        more = {
            name: decode[name] for name in ("memory_gb_per_s", "disk_gb_per_s", "bytes_per_token", "expert_hit_rate")
        }
        return self._run(OURS, limit, rows["pp"]["median_ts"], decode["median_ts"], decode["peak_rss_bytes"], more=more)

    def llama_cpp(self, repack: bool) -> Callable[[int | None], Run]:
        def run(limit: int | None) -> Run:
            work = {
                "context": PROMPT + DECODE + 64,
                "threads": self.threads,
                "repack": repack,
                "mmap": True,
                "passages": passages(self.folder, PROMPT, DECODE, 2),
            }
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(work, file)
                file.flush()
                command = [self.peers, str(HERE / "llamacpp_run.py"), str(self.path), file.name]
                said = json.loads(output_of(command, limit, TIMEOUT_S).splitlines()[-1])
            last = said["rounds"][-1]
            decoded = len(last["token_s"]) / sum(last["token_s"])
            way = f"{LLAMA}, {'repacked' if repack else 'as it lies'}"
            return self._run(way, limit, PROMPT / last["prefill_s"], decoded, said["peak_rss_bytes"])

        return run

    def mistral_rs(self, limit: int | None) -> Run:
        words = [str(HERE / "mistralrs_run.py"), str(self.path), f"0,{PROMPT}", str(DECODE), "60"]
        lines = output_of([self.peers, *words], limit, TIMEOUT_S).splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{")][-1]
        return self._run(MISTRAL, limit, said["prefill_ts"], said["decode_ts"])

    def _run(self, engine: str, limit: int | None, prefill: float, decode: float, peak: int = 0, **more: Any) -> Run:
        return Run(self.path.name, ALL if limit is None else THIRD, engine, prefill, decode, peak, **more)

    def ways(self) -> dict[str, Callable[[int | None], Run]]:
        return {
            OURS: self.moeinf,
            f"{LLAMA}, repacked": self.llama_cpp(True),
            f"{LLAMA}, as it lies": self.llama_cpp(False),
            MISTRAL: self.mistral_rs,
        }


def stored(path: Path) -> tuple[str, Path]:
    """A name by which moeinf runs the file where it lies, and the model's folder."""
    name = f"peers-{path.stem.lower()}"
    output_of([sys.executable, "-m", "moeinf", "pull", str(path), "--name", name], timeout_s=TIMEOUT_S)
    return name, Library(store_home()).find(name).path


def product_gflops(threads: int) -> float:
    """GFLOP/s of 512 activations with a matrix of q4_k that the second-level cache holds: a prompt without anything
    around its products."""
    rows, cols = 768, 2048
    memory = np.zeros(format_bytes("q4_k", (rows, cols)), np.uint8)
    weights = np.random.default_rng(0).standard_normal((rows, cols), np.float32)
    _native.quantise("q4_k", weights.view(np.uint8).ravel(), "f32", rows, cols, memory)
    matrix, kernels = _native.Matrix(memory, "q4_k", rows, cols), _native.Kernels(threads)
    x, y, best = weights[: PROMPT % rows].copy(), np.zeros((PROMPT, rows), np.float32), float("inf")
    for _ in range(20):
        kernels.begin_pass(PROMPT)
        started = time.perf_counter()
        kernels.linear(x, matrix, y)
        best = min(best, time.perf_counter() - started)
    return 2 * PROMPT * rows * cols / 1e9 / best


def measure(files: list[Path], given: argparse.Namespace) -> dict[str, Any]:
    settings = [Setting(path, *stored(path), given.threads, given.peers) for path in files]
    held: dict[str, Any] = {
        "machine": given.machine or processor(),
        "commit": subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT, check=False
        ).stdout.strip(),
        "threads": given.threads,
        "versions": versions(given.peers, given.built),
        "files": {each.path.name: about(each.path, given) for each in settings},
        "runs": [],
    }
    for setting in settings:
        third = setting.path.stat().st_size // 3
        for number in range(given.rounds):
            for limit in (None, third) if can_limit() else (None,):
                ways = list(setting.ways().items())
                for engine, way in reversed(ways) if number % 2 else ways:
                    if slow(held["runs"], setting.path.name, engine):
                        continue
                    if limit is None:
                        into_page_cache(setting.path)
                    held["gflops"] = max(held.get("gflops", 0.0), product_gflops(given.threads))
                    run = attempted(setting.path.name, engine, way, limit)
                    said = run.failed or f"{run.prefill_ts:.1f}, {run.decode_ts:.2f}"
                    print(f"{run.file}, {run.memory}: {engine}: {said}", file=sys.stderr, flush=True)
                    held["runs"].append({name: value for name, value in asdict(run).items() if value})
    return held


def slow(runs: list[dict[str, Any]], file: str, engine: str) -> bool:
    """Whether an engine has run once with all the memory, and shown that more of its runs would take the hours."""
    return any(
        (run["file"], run["memory"], run["engine"]) == (file, ALL, engine) and 0 < run.get("decode_ts", 0) < SLOW_TS
        for run in runs
    )


def attempted(file: str, engine: str, way: Callable[[int | None], Run], limit: int | None) -> Run:
    try:
        return way(limit)
    except Failed as failure:
        return Run(file, ALL if limit is None else THIRD, engine, failed=str(failure))


def about(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    return {
        "bytes": path.stat().st_size,
        "bytes_a_token": weight_bytes_per_token(path),
        "weights_a_token": weights_per_token(path),
        "weights": "random" if path.name in given.random else "real",
    }


def into_page_cache(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "a CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB"


def versions(peers: str, built: str) -> dict[str, str]:
    said = "from importlib.metadata import version as v; print(v('llama-cpp-python'), v('mistralrs'))"
    llama, mistral = output_of([peers, "-c", said]).split()
    return {LLAMA: f"of llama-cpp-python {llama}, built {built}", MISTRAL: mistral}


# What was measured, as a page.


def median_of(runs: list[dict[str, Any]], file: str, memory: str, engine: str, test: str) -> float:
    """Of the better way of an engine; 0 where it has none."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if (run["file"], run["memory"], run["engine"].split(",")[0]) == (file, memory, engine) and test in run:
            found.setdefault(run["engine"], []).append(run[test])
    return max((statistics.median(each) for each in found.values()), default=0.0)


def limit_of(held: dict[str, Any], file: str, memory: str, test: str) -> tuple[float, str]:
    """Tokens a second that the machine allows, and what of it does."""
    about_file, gflops = held["files"][file], held["gflops"]
    more = [r["more"] for r in held["runs"] if (r["file"], r["memory"]) == (file, memory) and r.get("more")]

    def middle(name: str) -> float:
        return float(statistics.median(each[name] for each in more))

    if test == "prefill_ts":
        return gflops * 1e9 / (2 * about_file["weights_a_token"]), "products"
    of_memory = middle("memory_gb_per_s") * 1e9 / about_file["bytes_a_token"]
    if memory == ALL or not (read := middle("bytes_per_token")):
        return of_memory, "memory"
    of_disk = middle("disk_gb_per_s") * 1e9 / read
    return min((of_memory, "memory"), (of_disk, "disk"))


Cells = tuple[str, str, str, dict[str, float], float, str]  # file, memory, test, tokens/s by engine, limit, of what


def cells(held: dict[str, Any]) -> Iterator[Cells]:
    for file in held["files"]:
        for memory in (ALL, THIRD):
            for test, name in (("prefill_ts", f"prompt of {PROMPT}"), ("decode_ts", "decode")):
                rates = {
                    engine: median_of(held["runs"], file, memory, engine, test) for engine in (OURS, LLAMA, MISTRAL)
                }
                if rates[OURS]:
                    yield file, memory, name, rates, *limit_of(held, file, memory, test)


def shown(rate: float) -> str:
    return (f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}") if rate else "-"


def page(held: dict[str, Any]) -> str:
    lines = [
        row("file", "memory", "tokens/s of a", OURS, LLAMA, MISTRAL, "to the best", "limit", "reached"),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file, memory, test, rates, limit, what in cells(held):
        best = max(rates[LLAMA], rates[MISTRAL])
        ratio = f"**{rates[OURS] / best:.2f}**" if best else "-"
        reached = "-" if test.startswith("prompt") and memory == THIRD else f"{rates[OURS] / limit:.0%}"
        limit_text = f"{what} {shown(limit)}"
        lines.append(row(file, memory, test, *map(shown, rates.values()), ratio, limit_text, reached))
    failures = dict.fromkeys(
        f"- {run['engine']} with memory for {run['memory']} of {run['file']}: {run['failed']}."
        for run in held["runs"]
        if "failed" in run
    )
    told = [f"- `{name}`: {size(each)}, {each['weights']} weights." for name, each in held["files"].items()]
    rounds = max(
        sum(
            (run["file"], run["memory"], run["engine"]) == (one["file"], one["memory"], one["engine"])
            for run in held["runs"]
        )
        for one in held["runs"]
    )
    said = {
        "table": "\n".join(lines),
        "failures": "\n".join(("What did not end with a figure (`-`):", "", *failures, "")) if failures else "",
        "files": "\n".join(told),
        "machine": held["machine"],
        "commit": held["commit"],
        "threads": str(held["threads"]),
        "rounds": str(rounds),
        "llama": held["versions"][LLAMA],
        "mistral": held["versions"][MISTRAL],
        "gflops": f"{held['gflops']:.0f}",
    }
    text = (HERE / "page.md").read_text(encoding="utf-8")
    for name, value in said.items():
        text = text.replace(f"@{name}@", value)
    return "\n\n".join(wrapped(part.strip()) for part in text.split("\n\n") if part.strip()) + "\n"


def wrapped(part: str) -> str:
    """A paragraph, or the items of a list, in lines of 120 columns; anything else as it is."""
    if part.startswith(("#", "|", "!", "`")):
        return part
    if part.startswith("- "):
        return "\n".join(
            textwrap.fill(each, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for each in part.split("\n")
        )
    return textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False)


def size(about_file: dict[str, Any]) -> str:
    return f"{about_file['bytes'] / 1e9:.2f} GB, of which a token uses {about_file['bytes_a_token'] / 1e6:.0f} MB"


def draw(held: dict[str, Any]) -> None:
    """A group of bars a row of the table: tokens a second as shares of its limit."""
    from matplotlib.figure import Figure

    rows = [(f"{file.removesuffix('.gguf')}\n{memory}, {test}", rates) for file, memory, test, rates, *_ in cells(held)]
    figure = Figure(figsize=(9, 0.75 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    for place, (engine, colour) in enumerate(((OURS, "#1f77b4"), (LLAMA, "#ff7f0e"), (MISTRAL, "#7f7f7f"))):
        at = [number + (place - 1) * 0.27 for number in range(len(rows))]
        rates = [each[engine] for _, each in rows]
        axes.barh(at, rates, height=0.25, label=engine, color=colour)
        for y, rate in zip(at, rates, strict=True):
            axes.text(rate or 1, y, f" {shown(rate)}", va="center", fontsize="x-small")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("tokens/s, on a scale of powers of ten")
    axes.legend(loc="lower right", fontsize="small")
    save_picture(figure, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.gguf")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="that has llama_cpp and mistralrs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--machine", default="", help="what the page says of it [default: the CPU's name]")
    parser.add_argument("--built", default="for this machine", metavar="WORDS", help="how llama.cpp was built")
    parser.add_argument("--random", action="append", default=[], metavar="NAME", help="a file whose weights are random")
    parser.add_argument(
        "--only-page", action="store_true", help="write the page and the picture from what was measured"
    )
    given = parser.parse_args()
    if not given.only_page:
        for path in given.files:
            gguf.GGUFReader(path)  # raises for what is none, before anything takes time
        RESULT.write_text(json.dumps(measure(given.files, given), indent=1) + "\n", encoding="utf-8")
    held = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(page(held), encoding="utf-8")
    draw(held)
    print(f"{PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)} are written")


if __name__ == "__main__":
    main()
