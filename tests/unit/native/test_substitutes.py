"""Experts that stand in for absent ones, against a slow way to find them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import substitute
from moeinf.types import Float32Array, IntArray, Spares
from tests.oracles.substitutes import substituted

EXPERTS, TOP_K = 9, 3


def drawn(rng: np.random.Generator, tokens: int, num_spares: int) -> tuple[IntArray, Float32Array, Spares | None]:
    """What a router chooses, largest weight first, and whom it would choose next."""
    scores = -np.sort(-rng.dirichlet(np.full(EXPERTS, 0.6), tokens).astype(np.float32), axis=1) + np.float32(1e-4)
    order = rng.random((tokens, EXPERTS)).argsort(axis=1)
    end = TOP_K + num_spares
    ids, weights = order[:, :TOP_K].copy(), scores[:, :TOP_K].copy()
    behind = order[:, TOP_K:end].copy(), scores[:, TOP_K:end].copy()
    return ids, weights, Spares(*behind, bool(rng.random() < 0.5)) if num_spares else None


def changed(
    states: np.ndarray, ids: IntArray, weights: Float32Array, spares: Spares | None, most_lost: float
) -> tuple[IntArray, Float32Array, int]:
    ids, weights = ids.copy(), weights.copy()
    spare_ids, spare_weights, keeps_sum = spares or (None, None, False)
    counts = substitute(
        states.ravel(),
        states.shape[1],
        ids,
        weights,
        spare_ids,
        spare_weights,
        keeps_sum=keeps_sum,
        most_lost=most_lost,
    )
    return ids, weights, sum(counts)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 9999),
    tokens=st.integers(1, 5),
    num_spares=st.integers(0, EXPERTS - TOP_K),
    slices=st.integers(1, 2),
    most_lost=st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9]),
)
def test_the_same_experts_are_given_up_by_either(
    seed: int, tokens: int, num_spares: int, slices: int, most_lost: float
) -> None:
    rng = np.random.default_rng(seed)
    ids, weights, spares = drawn(rng, tokens, num_spares)
    states = rng.choice(3, (EXPERTS, slices), p=[0.5, 0.1, 0.4]).astype(np.uint8)
    found_ids, found, count = changed(states, ids, weights, spares, most_lost)
    wanted_ids, wanted = substituted(states, ids, weights, spares, most_lost)
    assert np.array_equal(found_ids, wanted_ids)
    assert np.allclose(found, wanted, rtol=1e-5)
    untouched = (found_ids == ids).all(axis=1)
    assert np.array_equal(found[untouched], weights[untouched]), "not bit for bit what the router said"
    assert (count == 0) == untouched.all()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 9999), most_lost=st.sampled_from([0.05, 0.2, 0.5]))
def test_a_token_loses_no_more_of_its_weight_than_it_may(seed: int, most_lost: float) -> None:
    rng = np.random.default_rng(seed)
    ids, weights, _ = drawn(rng, 4, 0)
    states = rng.choice(3, (EXPERTS, 1)).astype(np.uint8)
    _, found, _ = changed(states, ids, weights, None, most_lost)
    assert (found.sum(axis=1) >= weights.sum(axis=1) * (1 - most_lost) - 1e-6).all()


def test_nothing_changes_where_all_is_there() -> None:
    ids, weights, spares = drawn(np.random.default_rng(0), 3, 4)
    found_ids, found, count = changed(np.full((EXPERTS, 1), 2, np.uint8), ids, weights, spares, 0.9)
    assert np.array_equal(found_ids, ids) and np.array_equal(found, weights) and count == 0
