"""Counters of the expert cache."""

from __future__ import annotations

from moeinf.runtime.cache.stats import CacheStats


def test_the_hit_rate_is_the_share_of_activations_that_hit() -> None:
    assert CacheStats(hits=3, misses=1, late_hits=1).hit_rate == 0.75


def test_the_hit_rate_of_nothing_is_zero() -> None:
    assert CacheStats().hit_rate == 0.0


def test_a_snapshot_stands_still_while_counting_goes_on() -> None:
    stats = CacheStats(hits=1)
    before = stats.snapshot()
    stats.hits += 4
    assert before.hits == 1


def test_a_difference_holds_what_was_counted_in_between() -> None:
    stats = CacheStats(hits=1, misses=2, stall_s=0.5)
    before = stats.snapshot()
    stats.hits, stats.stall_s = 6, 0.75
    assert stats.since(before) == CacheStats(hits=5, stall_s=0.25)
