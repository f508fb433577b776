"""Which rank owns which expert."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.distributed.ownership import Capacity, owners, shares

NUM_EXPERTS = 6144


def test_what_all_memories_hold_is_shared_by_memory() -> None:
    wanted = shares(100, [Capacity(100, 1.0), Capacity(50, 9e9), Capacity(300, 0.0)])
    assert wanted.tolist() == pytest.approx([40.0, 20.0, 40.0])  # more than all experts counts as all of them


def test_what_no_memory_holds_is_shared_so_that_all_disks_end_together() -> None:
    ranks = [Capacity(100, 2e9), Capacity(200, 1e9), Capacity(0, 0.5e9)]
    wanted = shares(NUM_EXPERTS, ranks)
    assert wanted.sum() == pytest.approx(NUM_EXPERTS)
    times = [(each - rank.num_slots) / rank.bytes_per_s for each, rank in zip(wanted, ranks, strict=True)]
    assert times == pytest.approx([times[0]] * 3)


def test_a_rank_owns_in_proportion_to_its_weight() -> None:
    weights = np.array([1.0, 2.0, 5.0, 0.0])
    counts = np.bincount(owners(NUM_EXPERTS, weights), minlength=4)
    assert counts[3] == 0
    spread = np.sqrt(NUM_EXPERTS * weights / 8 * (1 - weights / 8))
    assert (np.abs(counts - NUM_EXPERTS * weights / 8) <= 4 * spread).all()


def test_every_layer_of_a_model_is_spread() -> None:
    by_layer = owners(48 * 128, np.ones(4)).reshape(48, 128)
    assert all(len(np.unique(row)) == 4 for row in by_layer)


def test_experts_of_a_rank_that_leaves_are_all_that_moves() -> None:
    before, after = (owners(NUM_EXPERTS, np.array([1.0, last, 2.0])) for last in (1.0, 0.0))
    assert (before[before != 1] == after[before != 1]).all()
    assert (after != 1).all() and len(np.unique(after[before == 1])) == 2
