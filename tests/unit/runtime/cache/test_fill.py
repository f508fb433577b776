"""Filling free slots while nobody waits: the experts that come first are read, and nothing that is there leaves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.fake_reader import SHAPE, make_tier, visit

ALL = np.arange(SHAPE.total_experts)[::-1]  # the last expert is wanted first


def never() -> bool:
    return False


def test_the_first_keys_fill_the_free_slots() -> None:
    tier, reader, policy = make_tier(8)
    visit(tier, policy, 0, np.array([[0, 1]]))
    tier.fill(ALL, never)
    tier.check_integrity()
    assert tier.snapshot().resident == {0, 1, *ALL[:6].tolist()}
    assert reader.submitted == 8 and tier.stats.prefetches == 0


def test_what_is_there_is_not_read_again() -> None:
    tier, reader, _ = make_tier(8)
    tier.fill(ALL[:4], never)
    tier.fill(ALL[:4], never)
    assert reader.submitted == 4 and tier.num_slots == 8


@pytest.mark.parametrize("rounds", range(5))
def test_a_visit_after_an_end_in_the_middle_finds_its_experts(rounds: int) -> None:
    tier, _, policy = make_tier(8, seed=rounds)
    looks = iter([False] * rounds)
    tier.fill(ALL, lambda: next(looks, True))
    for layer in range(SHAPE.num_layers):
        visit(tier, policy, layer, np.array([[0, 5], [5, 3]]))
        tier.check_integrity()
    assert not tier.snapshot().reserved and not tier.snapshot().pinned


def test_a_read_that_fails_ends_it_and_is_told_to_nobody() -> None:
    failed = int(ALL[2])
    tier, reader, _ = make_tier(8, failing=frozenset({failed}))
    tier.fill(ALL, never)
    tier.check_integrity()
    assert failed not in tier.snapshot().offsets and reader.submitted <= 9
