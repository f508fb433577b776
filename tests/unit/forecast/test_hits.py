"""What share of a token's experts a cache will hold, and how earlier runs are remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeinf.engine.stored.hit_record import FILE, HitCount, load_hits, record_hits
from moeinf.forecast.hits import between, expected_hits
from moeinf.runtime.cache.stats import CacheStats
from moeinf.store.library import StoredModel
from moeinf.types import MoeShape

MANY = MoeShape(48, 128, 8)
TOTAL = MANY.total_experts


def test_recorded_routing_of_the_same_architecture_counts_first() -> None:
    found = expected_hits(MANY, "qwen3_moe", TOTAL // 10, {}, 100)
    assert abs(found.hit_rate - 0.591) < 0.01 and found.read_share == 1 - found.hit_rate
    assert "Qwen3-30B-A3B" in found.source
    mean = expected_hits(MANY, "olmoe", TOTAL // 10, {}, 100)
    assert abs(mean.hit_rate - (0.320 + 0.446 + 0.591) / 3) < 0.01 and "gpt-oss-20b" in mean.source


def test_of_few_experts_as_much_is_expected_as_of_mixtral() -> None:
    for architecture in ("mixtral", "another"):
        found = expected_hits(MoeShape(30, 8, 2), architecture, 48, {}, 100)  # a fifth
        assert found.hit_rate == 0.324 and "recorded routing of Mixtral-8x7B" in found.source


def test_more_slots_never_hit_less() -> None:
    for architecture in ("qwen3_moe", "deepseek_v2", "gpt_oss", "another"):
        rates = [expected_hits(MANY, architecture, slots, {}, 100).hit_rate for slots in range(0, TOTAL + 1, 64)]
        assert rates == sorted(rates) and rates[0] == 0 and rates[-1] == 1


def test_history_of_the_model_counts_more_than_that_of_others() -> None:
    record = {TOTAL // 4: HitCount(10_000, 3_000, 900_000)}  # of 100 bytes each: 9,000 reads
    found = expected_hits(MANY, "qwen3_moe", TOTAL // 4, record, 100)
    assert (found.hit_rate, found.read_share) == (0.3, 0.9) and "earlier runs" in found.source
    half = expected_hits(MANY, "qwen3_moe", TOTAL // 8, record, 100)
    assert abs(half.hit_rate - 0.15) < 1e-9 and abs(half.read_share - 0.95) < 1e-9
    few = {TOTAL // 4: HitCount(10, 3, 900)}  # tell nothing yet
    assert "recorded" in expected_hits(MANY, "qwen3_moe", TOTAL // 4, few, 100).source


def test_nothing_is_read_where_all_fits() -> None:
    found = expected_hits(MANY, "qwen3_moe", TOTAL, {1: HitCount(10_000, 0, 10)}, 100)
    assert (found.hit_rate, found.read_share) == (1, 0)


def test_values_between_places() -> None:
    assert [between([0, 1, 3], [0, 10, 30], at) for at in (0, 0.5, 1, 2, 3)] == [0, 5, 10, 20, 30]


@pytest.fixture
def stored(tmp_path: Path) -> StoredModel:
    return StoredModel("a:latest", "0" * 12, tmp_path)


def test_counts_of_a_size_are_added_up(stored: StoredModel) -> None:
    stats = CacheStats(hits=3, misses=1, demand_bytes=10, prefetch_bytes=5)
    record_hits(stored, 7, stats)
    record_hits(stored, 9, stats)
    record_hits(stored, 7, stats)
    assert load_hits(stored) == {9: HitCount(4, 3, 15), 7: HitCount(8, 6, 30)}
    record_hits(stored, 5, CacheStats())
    assert 5 not in load_hits(stored)


def test_what_is_long_ago_counts_less(stored: StoredModel) -> None:
    for _ in range(40):
        record_hits(stored, 7, CacheStats(hits=100_000))
    for _ in range(40):
        record_hits(stored, 7, CacheStats(misses=100_000))
    count = load_hits(stored)[7]
    assert count.hits / count.activations < 0.1


def test_only_the_latest_sizes_are_kept(stored: StoredModel) -> None:
    for slots in range(1, 30):
        record_hits(stored, slots, CacheStats(hits=1))
    assert list(load_hits(stored)) == list(range(14, 30))


@pytest.mark.parametrize("content", ["", "[]", '{"a": [1, 1, 1]}', '{"3": [1, 2]}', '{"3": 4}', '{"3": [1, 2, 3]}'])
def test_a_damaged_record_counts_as_none_and_is_replaced(content: str, stored: StoredModel) -> None:
    (stored.path / FILE).write_text(content)
    assert load_hits(stored) == {}
    record_hits(stored, 3, CacheStats(hits=1))
    assert json.loads((stored.path / FILE).read_text()) == {"3": [1, 1, 0]}
