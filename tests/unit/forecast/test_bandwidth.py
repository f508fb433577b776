"""A benchmark stands beside what memory can give, and refuses what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.bench.columns import COLUMNS
from moeinf.bench.live_bench import Workload, run_bench
from moeinf.config import RuntimeConfig
from moeinf.engine.speed.weight_bytes import token_bytes
from moeinf.engine.stored.outline import outline_of
from moeinf.errors import UsageError
from moeinf.forecast.bandwidth import memory_bytes_per_s
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel


def test_with_too_little_memory_no_rate_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeinf.forecast.bandwidth.machine", lambda: Machine(100 << 20, "machine", 1))
    assert memory_bytes_per_s(RuntimeConfig.of(threads=1)) == 0


def test_an_instruction_set_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"MOEINF_ISA.*sse9"):
        memory_bytes_per_s(RuntimeConfig.of(threads=1, isa="sse9"))


def test_the_cold_request_finds_an_empty_cache_also_where_everything_fits(demo: StoredModel) -> None:
    said: list[str] = []
    config = RuntimeConfig.of(threads=1, prefetch=False)
    rows = run_bench(demo, config, Workload(num_prompt=8, num_decode=4, repeats=1), said.append)
    cold, _, warm, decode = rows
    assert cold["cold"] and cold["experts"] == cold["experts_total"]
    assert (cold["hits"], cold["bytes_per_token"] > 0) == (0, True)
    assert (warm["expert_hit_rate"], decode["expert_hit_rate"], warm["bytes_per_token"]) == (1, 1, 0)
    assert not any("page cache" in line for line in said) and said.index("loading") < said.index("measuring the disk")
    assert set().union(*rows) == set(COLUMNS), "every column is explained, and no other"
    run_bench(demo, RuntimeConfig.of(threads=1, direct_io=False), Workload(8, 4, 0), said.append)
    assert sum("page cache" in line for line in said) == 1


def test_what_cannot_be_is_refused_before_anything_is_measured(demo: StoredModel, tmp_path: Path) -> None:
    def measured(line: str) -> None:
        raise AssertionError(line)

    with pytest.raises(UsageError, match=r"5064 tokens, the context is 2048; lower them; the model"):
        run_bench(demo, RuntimeConfig(), Workload(num_prompt=5000), measured)
    with pytest.raises(UsageError, match=r"is 64; lower them, or raise --num-ctx \(the model allows 2048\)"):
        run_bench(demo, RuntimeConfig.of(context=64), Workload(num_prompt=64), measured)
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for name, said in (("none", "No such file"), ("empty", "is empty"), ("latin", "no UTF-8")):
        with pytest.raises(UsageError, match=said):
            run_bench(demo, RuntimeConfig(), Workload(text_file=tmp_path / name), measured)


def test_a_decode_row_has_its_share_of_the_memory_bandwidth(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeinf.bench.live_bench.memory_bytes_per_s", lambda config: 50e9)
    rows = run_bench(demo, RuntimeConfig.of(threads=1), Workload(num_prompt=8, num_decode=4, repeats=1))
    prefill, decode = rows[2:]
    used = token_bytes(outline_of(demo)) * decode["median_ts"]
    assert decode["weights_gb_per_s"] == pytest.approx(used / 1e9, rel=0.01)
    assert decode["memory_share"] == pytest.approx(used / 50e9, rel=0.01, abs=0.001)
    assert prefill["memory_share"] == 0 and prefill["memory_gb_per_s"] == 50
