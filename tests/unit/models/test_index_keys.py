"""Index keys, what they are worth and the choice of the best, against their slow twins."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf import _native
from moeinf.types import Float32Array, IntArray


@pytest.fixture(scope="module", params=_native.available_isas())
def kernels(request: pytest.FixtureRequest) -> _native.Kernels:
    return _native.Kernels(2, request.param)


def worth(heads: Float32Array, weights: Float32Array | None, keys: Float32Array) -> np.ndarray:
    """heads [num_heads, dim], weights [num_heads], keys [keys, dim] -> [keys], by the formula."""
    shares = np.ones(len(heads)) if weights is None else weights.astype(np.float64)
    worth: np.ndarray = shares @ np.maximum(heads.astype(np.float64) @ keys.astype(np.float64).T, 0)
    return worth


def best_by_sorting(scores: Float32Array, count: int) -> list[int]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i] if scores[i] == scores[i] else np.inf, i))
    chosen = sorted(order[:count])
    return chosen + [-1] * (count - len(chosen))


class Case:
    def __init__(self, tokens: int, num_heads: int, dim: int, num_keys: int, apart: int = 0) -> None:
        rng = np.random.default_rng(num_keys + dim)
        self.heads = rng.standard_normal((tokens, num_heads * dim), np.float32)
        self.weights = rng.standard_normal((tokens, num_heads), np.float32)
        self.keys = rng.standard_normal((num_keys, dim + apart), np.float32)[:, apart:]
        self.seen = np.sort(rng.integers(0, num_keys + 1, tokens))
        self.seen[-1] = num_keys
        self.num_heads, self.tokens = num_heads, tokens

    def scores(self, kernels: _native.Kernels, weights: Float32Array | None) -> Float32Array:
        found: Float32Array = np.full((self.tokens, len(self.keys)), np.nan, np.float32)
        _native.score_keys(kernels, self.heads, weights, self.keys, self.seen, found)
        return found

    def chosen(self, kernels: _native.Kernels, most: int, part: slice = slice(None)) -> IntArray:
        found: IntArray = np.full((self.tokens, most), 77, np.int64)[part]
        _native.choose_keys(kernels, self.heads[part], self.weights[part], self.keys, self.seen[part], found)
        return found


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    "tokens, num_heads, dim, num_keys, apart",
    [(1, 1, 1, 1, 0), (3, 2, 7, 5, 0), (2, 64, 128, 3000, 0), (5, 9, 40, 1300, 3), (40, 4, 16, 129, 16)],
)
def test_scores_are_those_of_the_formula(
    kernels: _native.Kernels, tokens: int, num_heads: int, dim: int, num_keys: int, apart: int, weighted: bool
) -> None:
    case = Case(tokens, num_heads, dim, num_keys, apart)
    weights = case.weights if weighted else None
    found = case.scores(kernels, weights)
    for t, seen in enumerate(case.seen):
        heads = case.heads[t].reshape(num_heads, dim)
        expected = worth(heads, None if weights is None else weights[t], case.keys[:seen])
        assert np.abs(found[t, :seen] - expected).max(initial=0) <= 1e-5 * num_heads * dim
        assert np.isnan(found[t, seen:]).all()


@pytest.mark.parametrize("most", [1, 8, 100, 2000])
def test_the_best_are_those_that_sorting_finds(kernels: _native.Kernels, most: int) -> None:
    case = Case(6, 4, 24, 1500, 8)
    scores, chosen = case.scores(kernels, case.weights), case.chosen(kernels, most)
    for t, seen in enumerate(case.seen):
        assert chosen[t].tolist() == best_by_sorting(scores[t, :seen], most)


def test_of_equals_the_first_are_chosen_and_what_is_no_number_comes_last(kernels: _native.Kernels) -> None:
    case = Case(1, 1, 4, 12)
    case.heads[:], case.weights[:], case.keys[:] = 1, 1, 0  # all keys are worth 0
    case.keys[[3, 8]], case.keys[5] = 2, np.nan
    assert case.chosen(kernels, 4).tolist() == [[0, 1, 3, 8]]
    assert case.chosen(kernels, 11).tolist() == [[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]]


def test_a_choice_depends_on_no_other_token_nor_on_the_threads() -> None:
    case = Case(33, 16, 64, 2500)
    whole = case.chosen(_native.Kernels(1), 300)
    for threads in (2, 3):
        assert np.array_equal(case.chosen(_native.Kernels(threads), 300), whole)
    parts = [case.chosen(_native.Kernels(2), 300, slice(a, b)) for a, b in ((0, 1), (1, 20), (20, 33))]
    assert np.array_equal(np.concatenate(parts), whole)


def test_many_tokens_of_a_long_context_choose_in_several_turns() -> None:
    case = Case(300, 1, 4, 9000)  # more scores than are kept at once
    chosen, scores = case.chosen(_native.Kernels(2), 5), case.scores(_native.Kernels(2), case.weights)
    for t in (0, 150, 299):
        assert chosen[t].tolist() == best_by_sorting(scores[t, : case.seen[t]], 5)


@pytest.mark.parametrize("block", [1, 3, 128, 200, 1500])
def test_a_block_is_worth_its_best_key(kernels: _native.Kernels, block: int) -> None:
    case = Case(7, 4, 24, 1300, 8)
    case.seen = np.maximum(case.seen, 1)
    blocks = -(-case.seen // block)
    found: Float32Array = np.full((7 * 4, blocks[-1]), np.nan, np.float32)
    _native.score_blocks(kernels, case.heads, case.keys, case.seen, block, found)
    for t, seen in enumerate(case.seen):
        products = case.heads[t].reshape(4, 24).astype(np.float64) @ case.keys[:seen].astype(np.float64).T
        expected = np.maximum.reduceat(products, np.arange(0, seen, block), 1)
        rows = found[4 * t : 4 * t + 4]
        assert np.abs(rows[:, : blocks[t]] - expected).max() <= 1e-4
        assert np.isnan(rows[:, blocks[t] :]).all()


def test_the_best_of_given_scores_are_those_that_sorting_finds(kernels: _native.Kernels) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 9, (50, 40)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = np.nan
    seen, chosen = rng.integers(0, 41, 50), np.zeros((50, 12), np.int64)
    _native.choose_best(kernels, scores, seen, chosen)
    for row in range(50):
        assert chosen[row].tolist() == best_by_sorting(scores[row, : seen[row]], 12)


def test_sizes_that_do_not_fit_are_refused() -> None:
    kernels, case = _native.Kernels(1), Case(2, 3, 4, 6)
    with pytest.raises(ValueError, match="keys that are not there"):
        _native.choose_keys(kernels, case.heads, case.weights, case.keys, np.array([1, 7]), np.zeros((2, 1), np.int64))
    with pytest.raises(ValueError, match="more keys than it has scores"):
        _native.score_keys(kernels, case.heads, None, case.keys, np.array([1, 6]), np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match="whole number of heads"):
        _native.score_keys(kernels, case.heads[:, :-1].copy(), None, case.keys, case.seen, np.zeros((2, 6), np.float32))
    with pytest.raises(ValueError, match="one weight"):
        case.weights = case.weights[:, :2].copy()
        case.chosen(kernels, 3)
