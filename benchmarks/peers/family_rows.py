"""Rows of "Family by family" in docs/lab/benchmarks.md: one GGUF file on moeinf and on llama-bench, by turns.

    python benchmarks/peers/family_rows.py LLAMA_BENCH FILE.gguf ... [--no-third]

All in memory: moeinf, llama-bench as it is by default, llama-bench without repacking, moeinf again; 512 tokens of a
prompt and 32 behind them. In a third of the file's size, in a memory control group (version 1, needs root) and on a
cold page cache: 128 tokens of a prompt, then 16 of moeinf and 8 of llama-bench, which maps the file. Ours are the means
of the later requests of a process, llama-bench's the faster of its two ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from processes import Failed, output_of
from side_by_side import row

MOEINF = str(Path(sys.executable).with_name("moeinf"))
Rates = tuple[float, float]  # tokens a second of a prompt, and decoded
NOTHING: Rates = (0.0, 0.0)


def ours(file: Path, prompt: int, decode: int, limit_bytes: int | None = None) -> Rates:
    sizes = ["-p", str(prompt), "-n", str(decode), "-r", "1" if limit_bytes else "2"]
    said = output_of([MOEINF, "bench", str(file), *sizes, "--device", "cpu", "-o", "json", "-q"], limit_bytes)
    later = [each for each in json.loads(said) if not each["cold"]]
    return tuple(_mean(later, test) for test in (f"pp{prompt}", f"tg{decode}"))  # type: ignore[return-value]


def _mean(rows: list[dict[str, Any]], test: str) -> float:
    return statistics.fmean(each["median_ts"] for each in rows if each["test"].startswith(test))


def theirs(bench: str, file: Path, prompt: int, decode: int, options: list[str], limit: int | None = None) -> Rates:
    command = [bench, "-m", str(file), "-t", "2", "-o", "json", "-r", "1", *options]
    tests = (["-p", str(prompt), "-n", "0"], ["-p", "0", "-n", str(decode), "-d", str(prompt)])
    found = [json.loads(output_of([*command, *test], limit))[0]["avg_ts"] for test in tests]
    return found[0], found[1]


def tried(file: Path, what: str, run: Any) -> Rates:
    try:
        found: Rates = run()
    except Failed as failure:
        print(f"{file.name}, {what}: {failure}", file=sys.stderr)
        return NOTHING
    print(f"{file.name}, {what}: {found[0]:.1f} {found[1]:.2f}", file=sys.stderr, flush=True)
    return found


def cells(mine: Rates, peer: Rates) -> list[str]:
    pairs = zip(mine, peer, strict=True)
    return [cell for own, other in pairs for cell in (_shown(own), _shown(other), _ratio(own, other))]


def _shown(rate: float) -> str:
    return f"{rate:.3g}" if rate else "-"


def _ratio(own: float, other: float) -> str:
    return f"{own / other:.2f}" if own and other else "-"


def compared(bench: str, file: Path, third: bool) -> list[str]:
    file.read_bytes()  # into the page cache
    first = tried(file, "moeinf", lambda: ours(file, 512, 32))
    ways: tuple[list[str], ...] = ([], ["--repack", "0"])
    peers = [tried(file, f"llama-bench {' '.join(way)}", lambda w=way: theirs(bench, file, 512, 32, w)) for way in ways]
    second = tried(file, "moeinf again", lambda: ours(file, 512, 32))
    mean = (statistics.fmean((first[0], second[0])), statistics.fmean((first[1], second[1])))
    made = cells(mean, (max(p[0] for p in peers), max(p[1] for p in peers)))
    if third:
        limit = file.stat().st_size // 3
        mapped = ["-lm", "mmap", "--repack", "0", "--no-warmup"]
        own = tried(file, "moeinf in a third", lambda: ours(file, 128, 16, limit))
        peer = tried(file, "llama-bench in a third", lambda: theirs(bench, file, 128, 8, mapped, limit))
        made += cells(own, peer)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_bench")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--no-third", action="store_true", help="only with all in memory")
    given = parser.parse_args()
    for file in given.files:
        print(row(file.stem, *compared(given.llama_bench, file, not given.no_third)), flush=True)


if __name__ == "__main__":
    main()
