"""Rates of products with weights, beside those of reading them; no test asks how fast anything is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moeinf._native import Kernels
from moeinf.engine.speed.kernel_rates import KernelRate, cached_rate, has_width, matrix_of, memory_rate
from moeinf.types import FORMAT_BLOCKS, Format

PROGRAM = Path(__file__).parents[4] / "benchmarks" / "memory_rates.py"


@pytest.mark.parametrize("format", list(FORMAT_BLOCKS))
def test_every_format_has_rates_in_memory_and_in_caches(format: Format) -> None:
    kernels = Kernels(2)
    w = matrix_of(format, 512, 20_000, np.full(1440, 0x2C, np.uint8))
    for num_x in (1, 3):
        found = memory_rate(kernels, w, num_x, 1 << 20, 2)
        rates = [*found, found.share, cached_rate(kernels, w, num_x, 2)]
        assert all(0 < rate < math.inf for rate in rates)
        assert found.plain >= found.plain_median and found.product >= found.product_median


def test_the_share_is_that_of_neighbours_in_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(40.0, 20.0), (20.0, 8.0), (10.0, 9.0)]
    monkeypatch.setattr("moeinf.engine.speed.kernel_rates.product_read_rates", lambda *_: pairs)
    found = memory_rate(Kernels(1), matrix_of("f32", 8, 32, np.zeros(32, np.uint8)), 1, 1 << 20, 3)
    assert found == KernelRate(plain=40.0, plain_median=20.0, product=20.0, product_median=9.0, share=0.5)


def test_widths_of_no_whole_blocks_are_told_apart() -> None:
    assert has_width("q8_0", 896) and not has_width("q4_k", 896) and has_width("bf16", 7)


def test_the_program_prints_what_it_records_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    small = ["--span", str(1 << 20), "--matrix", "4096", "--repeats", "2", "--threads", "1"]
    asked = ["--formats", "q8_0,q4_k,bf16", "--widths", "96,256", "--rows", "1,2", "--json", str(tmp_path / "rates")]
    done = subprocess.run([sys.executable, str(PROGRAM), *small, *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "rates").read_text(encoding="utf-8"))
    cells = [(each["format"], each["width"], each["rows"]) for each in told["rates"]]
    assert cells == [
        (format, width, rows)
        for format in ("q8_0", "q4_k", "bf16")
        for width in (96, 256)
        for rows in (1, 2)
        if (format, width) != ("q4_k", 96)
    ]
    assert told["threads"] == 1 and told["isa"] == Kernels(1).isa
    for format, width, rows in cells:
        assert f"| {format} | {width} | {rows} |" in done.stdout
    assert "Left out, as a row is no whole number of blocks: q4_k of 96." in done.stdout


def test_the_program_makes_a_table_of_what_it_has_recorded(tmp_path: Path) -> None:
    def run(threads: int, shares: list[float]) -> str:
        rates = [
            {"format": "q8_0", "width": 32, "rows": rows, "share": share, "cached": 50e9, "plain_median": 40e9}
            for rows, share in enumerate(shares, 1)
            for _ in range(2)
        ]
        rates[0]["share"], rates[0]["plain_median"] = 0.5, 30e9
        file = tmp_path / str(threads)
        file.write_text(json.dumps({"isa": "avx2", "threads": threads, "rates": rates}), encoding="utf-8")
        return str(file)

    files = [run(2, [0.9, 0.1]), run(1, [1.02])]
    done = subprocess.run([sys.executable, str(PROGRAM), "--table", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "| weights | avx2, 2 threads, % | avx2, 1 thread, % | from L2, avx2, GB/s |"
    assert "| q8_0 | 50-90 | 50-102 | 50 |" in lines and "| q4_k | - | - | - |" in lines
    assert lines[-1] == "| a plain read, GB/s | 30-40 | 30-40 |  |"


def test_the_program_names_formats_that_it_knows() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "--formats", "q9_9"], capture_output=True, text=True)
    assert done.returncode == 2 and "unknown formats: q9_9; known are" in done.stderr and "q4_k" in done.stderr
