"""What look-ahead makes of the model's guesses, and what it learns of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.runtime.policy.lookahead import AT_FIRST, MEMORY, PRIOR, LookAheadPredictor
from moeinf.types import Float32Array, IntArray, MoeShape

SHAPE = MoeShape(num_layers=4, num_experts=6, top_k=2)


def weights(*tokens: tuple[float, ...]) -> Float32Array:
    return np.array(tokens, np.float32)


def likelihood(predictor: LookAheadPredictor, layer: int) -> list[float]:
    """Of the layer behind this one."""
    found = predictor.predict(layer)
    assert found is not None
    row: list[float] = found[-1].tolist()
    return row


def test_the_models_own_guess_is_the_likelihood_of_its_layer() -> None:
    predictor = LookAheadPredictor(SHAPE)
    assert predictor.predict(0) is None
    predictor.expect(1, np.array([[2, 4], [2, 5]]), weights((0.7, 0.3), (0.6, 0.4)))
    both, one = AT_FIRST, AT_FIRST / 2
    assert likelihood(predictor, 0) == pytest.approx([0, 0, both, 0, one, one])
    assert predictor.predict(1) is None, "the layer has been reached"
    predictor.expect(1, np.array([[0, 1]]), weights((0.5, 0.5)))
    assert likelihood(predictor, 0) == [AT_FIRST, AT_FIRST, 0, 0, 0, 0], "a newer guess takes the place of the older"


def test_guesses_come_before_the_layer_in_front_of_theirs_has_run() -> None:
    """As the decoder tells them: that of layer l + 1, then what layer l is routed to."""
    predictor = LookAheadPredictor(SHAPE)
    for _ in range(1000):
        for layer in range(SHAPE.num_layers):
            if layer + 1 < SHAPE.num_layers:
                predictor.expect(layer + 1, np.array([[layer, 5]]), weights((0.5, 0.5)))
            predictor.observe(layer, np.array([[max(0, layer - 1), 4]]))
            found = predictor.predict(layer)
            assert (found is None) == (layer + 1 == SHAPE.num_layers)
            assert found is None or (found.shape == (1, 6) and found[0].nonzero()[0].tolist() == [layer, 5])
    assert found is None
    predictor.expect(2, np.array([[1, 5]]), weights((0.5, 0.5)))
    assert likelihood(predictor, 1) == pytest.approx([0, 1, 0, 0, 0, 0], abs=0.01)


def test_a_guess_is_no_evidence_once_its_layer_has_run() -> None:
    predictor = LookAheadPredictor(SHAPE)
    predictor.observe(2, np.array([[0, 1]]))
    predictor.expect(3, np.array([[0, 5]]), weights((0.5, 0.5)))
    assert predictor.predict(2) is not None
    predictor.observe(3, np.array([[0, 5]]))
    assert predictor.predict(-1) is None, "in front of the next token's first layer nothing is known of it"


def test_each_place_of_each_layer_is_as_likely_as_it_was_right() -> None:
    predictor = LookAheadPredictor(SHAPE)
    for _ in range(1000):
        predictor.expect(1, np.array([[2, 4]]), weights((0.5, 0.5)))
        predictor.observe(1, np.array([[5, 2]]))
    predictor.expect(1, np.array([[0, 1]]), weights((0.9, 0.1)))
    assert likelihood(predictor, 0) == pytest.approx([1, 0, 0, 0, 0, 0], abs=0.01)
    predictor.expect(2, np.array([[0, 1]]), weights((0.9, 0.1)))
    assert likelihood(predictor, 1)[:2] == [AT_FIRST, AT_FIRST], "what one layer showed says nothing of another"


def test_what_is_not_guessed_has_no_likelihood_and_teaches_nothing() -> None:
    predictor = LookAheadPredictor(SHAPE)
    for _ in range(100):
        predictor.expect(1, np.array([[2, 2, 0], [3, 0, 0]]), weights((0.5, 0, 0), (0.1, 0, 0)))
        assert likelihood(predictor, 0)[0] == 0
        predictor.observe(1, np.array([[2, 0], [3, 0]]))
    predictor.expect(1, np.array([[1, 4, 5]]), weights((0.5, 0.3, 0.2)))
    assert likelihood(predictor, 0) == pytest.approx([0, 1, 0, 0, AT_FIRST, AT_FIRST], abs=0.01)


@pytest.mark.parametrize("between", ["begin", "restart", "other"])
def test_a_guess_whose_layer_never_came_teaches_nothing(between: str) -> None:
    predictor = LookAheadPredictor(SHAPE)
    for _ in range(100):
        predictor.expect(1, np.array([[2, 4]]), weights((0.5, 0.5)))
        if between == "begin":
            predictor.begin("decode")
        elif between == "restart":
            predictor.restart()
        tokens = 2 if between == "other" else 1  # of another pass
        predictor.observe(1, np.array([[0, 1]] * tokens))
    predictor.expect(1, np.array([[2, 4]]), weights((0.5, 0.5)))
    assert likelihood(predictor, 0)[2] == AT_FIRST


def test_what_was_right_long_ago_fades() -> None:
    predictor = LookAheadPredictor(SHAPE)
    guess, tokens = np.array([[2, 4]] * 512), np.full((512, 2), 0.5, np.float32)
    for right in (True, False):
        for _ in range(4 * int(MEMORY) // 512):
            predictor.expect(1, guess, tokens)
            predictor.observe(1, guess if right else guess + 1)
    predictor.expect(1, guess[:1], tokens[:1])
    assert likelihood(predictor, 0)[2] < 0.15


def test_the_arrays_of_a_guess_may_change_behind_it() -> None:
    predictor = LookAheadPredictor(SHAPE)
    ids, of_ids = np.array([[2, 4]]), weights((0.5, 0.5))
    for _ in range(100):
        ids[:], of_ids[:] = [[2, 4]], 0.5
        predictor.expect(1, ids, of_ids)
        ids[:], of_ids[:] = [[0, 1]], 0.0
        predictor.observe(1, ids)
    predictor.expect(1, np.array([[2, 4]]), weights((0.5, 0.5)))
    assert likelihood(predictor, 0)[2] < 0.05


@st.composite
def passes(draw: st.DrawFn) -> tuple[IntArray, npt.NDArray[np.bool_], IntArray]:
    """A guess [tokens, places], which of it is named, and the routing [tokens, top_k] that came."""
    tokens, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    orders = rng.random((2, tokens, SHAPE.num_experts)).argsort(axis=2)
    return orders[0, :, :width], rng.random((tokens, width)) < 0.8, orders[1, :, : SHAPE.top_k]


@given(st.lists(passes(), min_size=1, max_size=8))
def test_it_counts_as_plain_loops_do(drawn: list[tuple[IntArray, npt.NDArray[np.bool_], IntArray]]) -> None:
    predictor = LookAheadPredictor(SHAPE)
    named, used = [PRIOR] * 6, [PRIOR * AT_FIRST] * 6
    for ids, named_here, came in drawn:
        predictor.expect(1, ids, np.where(named_here, 0.25, 0.0).astype(np.float32))
        expected = [0.0] * SHAPE.num_experts
        for token, place in np.argwhere(named_here):
            expected[ids[token, place]] += used[place] / named[place] / len(ids)
        assert likelihood(predictor, 0) == pytest.approx(expected)
        predictor.observe(1, came)
        for token, place in np.argwhere(named_here):
            named[place] += 1
            used[place] += ids[token, place] in came[token]
