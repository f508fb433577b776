from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from moeinf.bench.bench_report import FORMS, format_rows, profile_text
from moeinf.errors import UsageError

COLD: Any = {
    "moeinf_version": "0.1.0",
    "backends": "CPU",
    "model_filename": "m:latest",
    "model_type": "mixtral bf16",
    "model_size": 93 * 10**9,
    "model_n_params": 46_700_000_000,
    "n_threads": 2,
    "isa": "avx2",
    "policy": "lru",
    "predictor": "eamc",
    "routing": "",
    "approx": "",
    "reader": "io_uring",
    "expert_cache_mib": 1024.0,
    "experts": 34,
    "experts_total": 256,
    "disk_gb_per_s": 1.5,
    "memory_gb_per_s": 45.3,
    "load_ms": 2500.0,
    "test": "tg64",
    "cold": True,
    "parallel": 0,
    "samples_ts": [10.5, 10.6],
    "avg_ts": 10.54,
    "stddev_ts": 0.21,
    "each_ts": 10.54,
    "byte_gain": 1.0,
    "ttft_ms": 812.0,
    "itl_ms": {"p50": 90.0, "p90": 120.0, "p99": 300.0},
    "expert_hit_rate": 0.382,
    "lru_hit_rate": None,
    "best_hit_rate": None,
    "late_hits": 7,
    "stall_s": 1.25,
    "bytes_per_token": 3 << 20,
    "read_gb_per_s": 1.3,
    "disk_share": 0.87,
    "memory_share": 0.79,
    "peak_rss_bytes": 2_500_000_000,
    "profile_ms": {"attention": 3.0, "stall": 1.0},
}
ROWS = [COLD, COLD | {"test": "pp128", "cold": False, "itl_ms": {}, "memory_share": 0.0, "profile_ms": {}}]


def test_the_summary_tells_what_other_caches_would_have_hit() -> None:
    rows = [COLD, COLD | {"cold": False, "lru_hit_rate": 0.301, "best_hit_rate": 0.547}]
    _, summary, *_ = format_rows(rows, "table").split("\n\n")
    assert summary.splitlines()[-1] == "caches as large, warm: LRU 30.1%, the best possible 54.7%"


def test_the_table_has_a_line_a_row_below_one_that_tells_the_setting() -> None:
    title, summary, speed, cache, legend = format_rows(ROWS, "table").split("\n\n")
    title = " ".join(title.split())
    assert title.startswith("m:latest · mixtral bf16 · 86.61 GiB · 34/256 experts (1024 MiB) · lru, prefetch eamc")
    assert "2 threads, avx2" in title and "disk 1.50 GB/s, memory 45.3 GB/s" in title
    assert summary.splitlines() == [
        "prefill 128: warm 10.54 tokens/s; expert hits 38.2%",
        "decode 64: cold 10.54 tokens/s; expert hits 38.2%",
    ]
    header, first, _ = speed.splitlines()
    assert header.split()[:4] == ["cache", "test", "t/s", "TTFT"] and "10.54 ± 0.21" in first and "79%" in first
    header, first, _ = cache.splitlines()
    assert header.split()[:3] == ["cache", "test", "hit"] and all(w in first for w in ("38.2%", "87%", "3.00"))
    told = " ".join(legend.split())
    for name in (
        *speed.splitlines()[0].split()[2:3],
        "TTFT",
        "p99",
        "of memory",
        "hit",
        "late",
        "stall",
        "MiB/token",
        "GB/s",
        "of disk",
        "RSS",
    ):
        assert f"{name}: " in told, name


def test_the_table_says_whose_routing_it_was() -> None:
    assert "routing of" not in format_rows(ROWS, "table")
    replayed = format_rows([COLD | {"routing": "gpt-oss-20b"}], "table")
    assert "prefetch eamc · routing of gpt-oss-20b ·" in " ".join(replayed.split())


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    wide = {
        "avg_ts": 12345.67,
        "stddev_ts": 123.45,
        "ttft_ms": 123456.0,
        "late_hits": 1234567,
        "stall_s": 12345.67,
        "bytes_per_token": 9 << 40,
        "read_gb_per_s": 123.45,
        "test": "tg131072",
        "disk_share": 1.0,
        "itl_ms": {"p50": 1234.5, "p90": 1234.5, "p99": 12345.6},
        "peak_rss_bytes": 2 * 10**12,
    }
    for row in (COLD, GPU):
        rows = [row | wide, row | wide | {"cold": False}]
        assert max(map(len, format_rows(rows, "table").splitlines())) <= 80


def test_markdown_has_the_columns_of_llama_bench() -> None:
    lines = format_rows(ROWS, "md").splitlines()
    assert lines[0].startswith("| model | size | params | backend | ecache |")
    assert lines[2].startswith("| mixtral bf16 | 86.61 GiB | 46.70 B | CPU | 34/256 | cold | tg64 | 10.54 ± 0.21 |")
    assert {line.count("|") for line in lines[:4]} == {21}
    assert lines[-1] == "build: moeinf 0.1.0"


GPU = COLD | {
    "backends": "CUDA",
    "gpu_info": "NVIDIA A5000",
    "cuda_driver": "13.0",
    "gpu_bytes": 24 << 30,
    "vram_limit_bytes": 12 << 30,
    "host_experts": 256,
    "link_gb_per_s": 24.5,
    "memory_gb_per_s": 700.0,
    "link_share": 0.91,
    "missed_gb_per_s": 22.25,
    "disk_share": 0.0,
}


def test_rows_of_a_gpu_tell_the_card_its_budget_and_the_share_of_its_link() -> None:
    title, _, _, cache, legend = format_rows([GPU], "table").split("\n\n")
    title = " ".join(title.split())
    assert "NVIDIA A5000 (12.0 of 24.0 GiB, driver for CUDA 13.0), 256 experts in RAM, link 24.5 GB/s" in title
    header, row = cache.splitlines()
    assert "of link" in header and "of disk" not in header + legend and " 91% " in row and " 22.25 " in row
    assert "| CUDA | 34/256 |" in format_rows([GPU], "md")


def test_csv_has_every_column_in_every_row() -> None:
    first, second = csv.DictReader(io.StringIO(format_rows(ROWS, "csv")))
    assert (first["itl_ms.p50"], second["itl_ms.p50"]) == ("90.0", "")
    assert first["samples_ts"] == "10.5 10.6" and first["cold"] == "True"


def test_json_and_json_lines_are_the_rows_themselves() -> None:
    assert json.loads(format_rows(ROWS, "json")) == ROWS
    assert [json.loads(line) for line in format_rows(ROWS, "jsonl").splitlines()] == ROWS


@pytest.mark.parametrize("form", FORMS)
def test_no_rows_are_no_error(form: str) -> None:
    assert format_rows([], form) in ("", "[]")


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown output 'xml'; known: table, md, csv, json, jsonl"):
        format_rows(ROWS, "xml")


def test_the_profile_shares_out_a_step() -> None:
    assert profile_text(ROWS).splitlines() == [
        "cold tg64: 4.00 ms a step",
        "attention    3.000 ms    75.0%",
        "stall        1.000 ms    25.0%",
    ]


def test_answers_side_by_side_have_rates_of_all_and_of_each() -> None:
    several = COLD | {
        "test": "tg64 x 8",
        "cold": False,
        "parallel": 8,
        "avg_ts": 40.0,
        "each_ts": 5.0,
        "byte_gain": 2.6,
    }
    _, summary, speed, *_ = format_rows([*ROWS, several], "table").split("\n\n")
    assert summary.splitlines()[1:] == [
        "decode 64: cold 10.54 tokens/s; expert hits 38.2%",
        "8 side by side: 40.00 tokens/s together, 5.00 each; bytes of weights allow 2.60 times one",
    ]
    assert "tg64 x 8" in speed
