"""A tier that holds only some of the experts, as other machines compute the rest."""

from __future__ import annotations

import numpy as np

from tests.support.fake_reader import SHAPE, make_tier, visit

MINE = np.arange(SHAPE.num_keys) % 3 == 0


def test_experts_of_others_are_neither_read_nor_kept() -> None:
    tier, reader, chosen = make_tier(SHAPE.total_experts, "next-use", 1)
    visit(tier, chosen, 0, np.arange(SHAPE.num_experts).reshape(-1, SHAPE.top_k))
    tier.only(MINE)
    tier.check_integrity()
    assert tier.snapshot().resident == set(np.flatnonzero(MINE[: SHAPE.num_experts]).tolist())
    before = reader.submitted
    tier.load_all(lambda done, total: None)
    assert tier.all_resident and tier.has_room_for_all
    assert tier.snapshot().resident == set(np.flatnonzero(MINE).tolist())
    assert reader.submitted - before == MINE.sum() - MINE[: SHAPE.num_experts].sum()
    assert tier.prefetches.known(0, SHAPE.num_layers).all(), "an expert of others would be read ahead"


def test_what_was_elsewhere_can_come_again() -> None:
    tier, _, chosen = make_tier(SHAPE.total_experts, "next-use", 1)
    tier.only(MINE)
    tier.load_all(lambda done, total: None)
    tier.only(tier.exists())
    tier.check_integrity()
    assert not tier.all_resident and tier.snapshot().resident == set(np.flatnonzero(MINE).tolist())
    visit(tier, chosen, 1, np.arange(SHAPE.num_experts).reshape(-1, SHAPE.top_k))
    assert tier.snapshot().resident >= set(range(SHAPE.num_experts, 2 * SHAPE.num_experts))


def test_nothing_is_kept_for_a_layer_that_did_not_run_here() -> None:
    """Where none of a layer's experts is this machine's, the next one is visited instead."""
    tier, _, chosen = make_tier(SHAPE.total_experts, "next-use", 1)
    tier.only(np.arange(SHAPE.num_keys) > 0)
    visit(tier, chosen, 0, np.array([[4, 1]]))
    keys = np.array([SHAPE.num_experts + 2, 2 * SHAPE.num_experts + 3])  # of the next layer, and the one behind
    tier.prefetches.submit(keys, np.array([0.5, 0.4]))
    visit(tier, chosen, 2 % SHAPE.num_layers, np.array([[4, 5]]))
    assert not tier.snapshot().reserved
    tier.check_integrity()
