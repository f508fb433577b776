"""Prefetch priority, and the choice under a budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.runtime.policy.priority import layer_proximity, prefetch_priority, select_prefetches


def test_priority_is_the_papers_formula() -> None:
    likelihood = np.array([[0.0, 1.0], [0.6, 0.4]])  # of layers 2 and 3
    priority = prefetch_priority(likelihood, layer_proximity(4), eps=0.1)
    expected = [[0.1 * 0.75, 1.1 * 0.75], [0.7 * 0.5, 0.5 * 0.5]]
    assert priority == pytest.approx(np.array(expected))


def test_of_equal_likelihoods_the_nearer_layer_comes_first() -> None:
    priority = prefetch_priority(np.zeros((3, 1)), layer_proximity(4))
    assert priority[0, 0] > priority[1, 0] > priority[2, 0] > 0


def test_nothing_is_left_to_prefetch_after_the_last_layer() -> None:
    priorities = prefetch_priority(np.ones((0, 2)), layer_proximity(3))
    assert select_prefetches(priorities, priorities > 0, budget=2) == []


def test_resident_experts_and_low_priorities_are_not_chosen() -> None:
    priorities = np.array([[0.9, 0.3], [0.5, 0.7]])
    resident = np.array([[True, False], [False, False]])
    assert select_prefetches(priorities, resident, budget=4, at_least=0.4) == [3, 2]


def test_a_budget_below_one_chooses_nothing() -> None:
    everything = np.ones((2, 2))
    assert select_prefetches(everything, everything < 0, budget=0) == []
    assert select_prefetches(everything, everything < 0, budget=-3) == []


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=6, max_size=6),
    st.integers(0, 8),
)
def test_the_choice_is_a_stable_sort_cut_at_the_budget(cells: list[tuple[float, bool]], budget: int) -> None:
    priorities = np.array([priority for priority, _ in cells]).reshape(2, 3)
    resident = np.array([there for _, there in cells]).reshape(2, 3)
    wanted = [(-priority, at) for at, (priority, there) in enumerate(cells) if priority > 0 and not there]
    assert select_prefetches(priorities, resident, budget) == [at for _, at in sorted(wanted)][:budget]
