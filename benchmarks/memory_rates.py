"""What share of a plain read's rate the kernels of decoding reach, by format and width of the weights.

    make memory-rates
    python benchmarks/memory_rates.py --threads 1 --isa avx2 --formats q8_0,q4_k --widths 896,4096 --rows 1,2,4,8
    python benchmarks/memory_rates.py --table benchmarks/results/memory-rates/*.json

Prints for each format, width and number of activations, in GB/s of weights: a plain read of memory by the same threads,
the product from memory, by turns in huge pages of several times the last-level cache, in calls of 16 MiB that are
split into tasks as decoding does it; and the product of weights that each thread has in its second-level cache, 256
KiB, over and over. Rates are the best of the repeats, with the median of those from memory beside them. The share is
that of the plain read just before, in the median of the repeats. Weights are random blocks.
--table measures nothing: of files that --json has written it prints for each format the least and the most share of all
widths, a column a file, and the rate from the second-level cache with one thread.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' random blocks

from moeinf._native import Kernels
from moeinf.engine.speed.kernel_rates import CACHED_BYTES, MATRIX_BYTES, cached_rate, has_width, matrix_of, memory_rate
from moeinf.hardware import cpu_name, machine
from moeinf.types import FORMAT_BLOCKS, ByteArray, Format
from tests.support.blocks import even_blocks

WIDTHS: Final = (512, 896, 1024, 2048, 2880, 4096, 7168, 14336)
SPAN_BYTES: Final = 256 << 20
REPEATS: Final = 5
POOL: Final = 4099  # blocks; a prime, so that no two rows are alike
HEAD: Final = (
    "| format | width | rows | plain read | from memory | share | median: plain read | from memory | from L2 |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=machine().cores)
    parser.add_argument("--isa", default="", help="an instruction set; the best by default")
    parser.add_argument("--formats", default=",".join(FORMAT_BLOCKS))
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--rows", default="1", help="activations that are multiplied at once, 1 to 8")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--span", type=int, default=SPAN_BYTES, help="bytes of memory that are gone through")
    parser.add_argument("--matrix", type=int, default=MATRIX_BYTES, help="bytes of the matrix of one call")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the rates there, too")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="prints what such files have, by format")
    given = parser.parse_args()
    if given.table:
        print("\n".join(table([json.loads(file.read_text(encoding="utf-8")) for file in given.table])))
        return
    formats, unknown = words(given.formats), set(words(given.formats)) - set(FORMAT_BLOCKS)
    if unknown:
        parser.error(f"unknown formats: {', '.join(sorted(unknown))}; known are {', '.join(FORMAT_BLOCKS)}")
    kernels = Kernels(given.threads, given.isa)
    print(f"{cpu_name()}, {given.threads} threads, {kernels.isa}, commit {commit()}, {given.repeats} repeats; GB/s\n")
    print(HEAD, flush=True)
    found, left_out = [], []
    for format in cast(Sequence[Format], formats):
        for width in map(int, words(given.widths)):
            if not has_width(format, width):
                left_out.append(f"{format} of {width}")
                continue
            for rows in map(int, words(given.rows)):
                row = measured(kernels, format, width, rows, given)
                print(line(row), flush=True)
                found.append(row)
    if left_out:
        print(f"\nLeft out, as a row is no whole number of blocks: {', '.join(left_out)}.")
    if given.json:
        given.json.write_text(json.dumps(record(kernels, found), indent=1) + "\n", encoding="utf-8")


def measured(
    kernels: Kernels, format: Format, width: int, rows: int, given: argparse.Namespace
) -> dict[str, str | float]:
    blocks = pattern(format)
    rate = memory_rate(kernels, matrix_of(format, width, given.matrix, blocks), rows, given.span, given.repeats)
    cached = cached_rate(kernels, matrix_of(format, width, CACHED_BYTES, blocks), rows, given.repeats)
    return {"format": format, "width": width, "rows": rows, **rate._asdict(), "cached": cached}


def table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Of products with one activation: shares by format, rates of one thread from the cache, and what memory gave."""
    alone = [run for run in runs if run["threads"] == 1]
    heads = [f"{run['isa']}, {run['threads']} thread{'s' if run['threads'] > 1 else ''}, %" for run in runs]
    heads += [f"from L2, {run['isa']}, GB/s" for run in alone]
    yield f"| weights | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for format in FORMAT_BLOCKS:
        shares = [[round(100 * row["share"]) for row in of_format(run, format)] for run in runs]
        rates = [[round(row["cached"] / 1e9) for row in of_format(run, format)] for run in alone]
        yield f"| {format} | {' | '.join(span(each) for each in (*shares, *rates))} |"
    plain = [sorted(round(row["plain_median"] / 1e9) for row in run["rates"]) for run in runs]
    yield f"| a plain read, GB/s | {' | '.join([*map(span, plain), *('' for _ in alone)])} |"


def of_format(run: dict[str, Any], format: str) -> list[dict[str, Any]]:
    return [row for row in run["rates"] if row["format"] == format and row["rows"] == 1]


def span(values: Sequence[int]) -> str:
    return "-" if not values else f"{min(values)}" if min(values) == max(values) else f"{min(values)}-{max(values)}"


def pattern(format: Format) -> ByteArray:
    """Of sound blocks, whose scales are alike, and of numbers of a normal distribution where there are no blocks."""
    rng = np.random.default_rng(0)
    if FORMAT_BLOCKS[format][0] > 1:
        return even_blocks(format, POOL, rng).ravel()
    wide = rng.standard_normal(POOL * 32).astype(np.float32)
    if format == "f32":
        return wide.view(np.uint8)
    if format == "f16":
        return wide.astype(np.float16).view(np.uint8)
    return (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def line(row: dict[str, str | float]) -> str:
    def rate(name: str) -> str:
        return f"{float(row[name]) / 1e9:.1f}"

    cells = [str(row[name]) for name in ("format", "width", "rows")]
    cells += [rate("plain"), rate("product"), f"{float(row['share']):.0%}"]
    return f"| {' | '.join([*cells, rate('plain_median'), rate('product_median'), rate('cached')])} |"


def record(kernels: Kernels, found: list[dict[str, str | float]]) -> dict[str, object]:
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "machine": cpu_name(),
        "isa": kernels.isa,
        "threads": kernels.threads,
        "rates": found,
    }


def commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() or "unknown"


def words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
