"""Prefetch priority, and the choice under a budget, held to its formula and a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf._native import rank_prefetches
from moeinf.runtime.policy.priority import EPS, layer_proximity, prefetch_priority
from moeinf.types import FloatArray

ABSENT, RESIDENT = 0, 2
LAYERS, EXPERTS = 5, 3


def test_priority_is_the_papers_formula() -> None:
    likelihood = np.array([[0.0, 1.0], [0.6, 0.4]])  # of layers 2 and 3
    priority = prefetch_priority(likelihood, layer_proximity(4), eps=0.1)
    expected = [[0.1 * 0.75, 1.1 * 0.75], [0.7 * 0.5, 0.5 * 0.5]]
    assert priority == pytest.approx(np.array(expected))


def test_of_equal_likelihoods_the_nearer_layer_comes_first() -> None:
    priority = prefetch_priority(np.zeros((3, 1)), layer_proximity(4))
    assert priority[0, 0] > priority[1, 0] > priority[2, 0] > 0


def ranked(
    likelihood: FloatArray, states: np.ndarray, at_least: float = 0.0, count: int = 99, first_key: int = 0
) -> tuple[list[int], list[float]]:
    return rank_prefetches(
        likelihood, num_layers=LAYERS, eps=EPS, states=states, absent=ABSENT, first_key=first_key, at_least=at_least,
        count=count
    )  # fmt: skip


def test_nothing_is_left_to_prefetch_after_the_last_layer() -> None:
    states = np.full(LAYERS * EXPERTS, ABSENT, np.uint8)
    assert ranked(np.ones((0, EXPERTS)), states, first_key=LAYERS * EXPERTS) == ([], [])


def test_residents_and_low_priorities_are_not_chosen() -> None:
    likelihood = np.array([[0.9, 0.3, 0.0], [0.5, 0.9, 0.7]])
    states = np.array([RESIDENT, ABSENT, ABSENT, ABSENT, RESIDENT, ABSENT], np.uint8)
    assert ranked(likelihood, states, at_least=0.25)[0] == [5, 3]


@pytest.mark.parametrize("count", [0, -3])
def test_a_budget_below_one_chooses_nothing(count: int) -> None:
    states = np.full(2 * EXPERTS, ABSENT, np.uint8)
    assert ranked(np.ones((2, EXPERTS)), states, count=count) == ([], [])


def test_likelihoods_of_more_layers_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="more layers"):
        ranked(np.ones((2, EXPERTS)), np.zeros(2 * EXPERTS, np.uint8), first_key=1)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=6, max_size=6),
    st.integers(0, 8),
    st.sampled_from([0.0, 0.2, 0.6]),
)
def test_the_choice_is_a_stable_sort_cut_at_the_budget(
    cells: list[tuple[float, bool]], budget: int, at_least: float
) -> None:
    likelihood = np.array([likely for likely, _ in cells]).reshape(2, EXPERTS)
    states = np.array([RESIDENT] * EXPERTS + [RESIDENT if there else ABSENT for _, there in cells], np.uint8)
    priorities = prefetch_priority(likelihood, layer_proximity(LAYERS)).ravel().tolist()
    wanted = sorted((-each, at) for at, each in enumerate(priorities) if each > at_least and not cells[at][1])[:budget]
    keys, found = ranked(likelihood, states, at_least, budget, first_key=EXPERTS)
    assert keys == [EXPERTS + at for _, at in wanted]
    assert found == [-each for each, _ in wanted], "the priorities are bit for bit the formula's"
