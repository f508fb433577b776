"""The native model of how soon experts are used again, against one that follows the formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import UseModel
from moeinf.runtime.policy.eviction import choose_victims
from moeinf.types import IntArray, MoeShape
from tests.oracles.use_model import SlowUseModel

SHAPE = MoeShape(num_layers=3, num_experts=7, top_k=2)


def make() -> UseModel:
    return UseModel(SHAPE.num_layers, SHAPE.num_experts, SHAPE.top_k)


def routing(rng: np.random.Generator, tokens: int) -> IntArray:
    """[tokens, top_k], the experts of a token distinct, the first ones likelier."""
    chosen: IntArray = (rng.random((tokens, SHAPE.num_experts)) * np.arange(1, SHAPE.num_experts + 1)).argsort(axis=1)
    return chosen[:, : SHAPE.top_k]


@settings(max_examples=25, deadline=None)
@given(
    passes=st.lists(st.tuples(st.integers(1, 30), st.sampled_from([1, 1, 1, 2, 5, 8, 9, 12])), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_any_passes_leave_what_the_formulas_say(passes: list[tuple[int, int]], seed: int) -> None:
    """passes: how many, and of how many tokens each; the model need not be told of every visit."""
    rng, fast, slow = np.random.default_rng(seed), make(), SlowUseModel(SHAPE)
    for times, tokens in passes:
        for layer in [*range(SHAPE.num_layers)] * times:
            if rng.random() < 0.9:
                ids = routing(rng, tokens)
                fast.observe(layer, ids)
                slow.observe(layer, ids)
    assert fast.no_use == pytest.approx(slow.no_use, rel=1e-5)
    assert fast.wait == pytest.approx(slow.wait, rel=1e-5)


def test_the_same_experts_leave_by_either() -> None:
    rng, fast, slow = np.random.default_rng(0), make(), SlowUseModel(SHAPE)
    for layer in [*range(SHAPE.num_layers)] * 60:
        ids, evictable = routing(rng, 1), rng.random((SHAPE.num_layers, SHAPE.num_experts)) < 0.7
        fast.observe(layer, ids)
        slow.observe(layer, ids)
        assert choose_victims(-fast.wait, evictable, 3) == choose_victims(-slow.wait, evictable, 3)


@pytest.mark.parametrize("what", ["here", "below", "before"])
def test_what_an_expert_is_followed_by_is_learned(what: str) -> None:
    """Layer 1 follows the token before in that layer, in the layer below, or the one before that."""
    rng, model = np.random.default_rng(1), make()
    tokens = [(0, 1), (2, 3), (4, 5)]
    below = here = before = 0
    right = 0
    for number in range(900):
        said = {"here": here, "below": below, "before": before}[what]
        below, before, here = int(rng.integers(3)), here, (said + 1) % 3 if rng.random() < 0.9 else int(rng.integers(3))
        if number >= 600:
            right += set(np.argsort(model.no_use[1])[:2].tolist()) == set(tokens[here])
        model.observe(0, np.array([tokens[below]]))
        model.observe(1, np.array([tokens[here]]))
    assert right >= 240, "of 300, of which 280 follow"


def test_rows_that_go_on_are_learned_each_by_itself() -> None:
    """Two sequences, each of which goes round: what comes next is known of both, and so of a step."""
    model, here = make(), np.array([0, 3])
    turns = np.array([[1, 2, 0], [4, 5, 3]])
    for _ in range(900):
        for layer in range(SHAPE.num_layers):
            model.observe(layer, np.stack([here, np.full(2, 6)], axis=1))
        here = turns[[0, 1], here % 3]
    comes = {int(here[0]), int(here[1]), 6}
    for layer in range(SHAPE.num_layers):
        assert {j for j in range(7) if model.no_use[layer, j] < 0.5} == comes
    model.restart()
    for layer in range(SHAPE.num_layers):
        model.observe(layer, np.stack([here, np.full(2, 6)], axis=1))
    assert np.isfinite(model.wait).all()


def test_tokens_together_are_counted_as_one_by_one() -> None:
    together, singly, ids = make(), make(), routing(np.random.default_rng(2), 9)
    together.observe(0, ids)
    for token in ids:
        singly.observe(0, token[None])
    assert together.wait[0] == pytest.approx(singly.wait[0], rel=0.5), "but for what singles teach"
    assert (np.argsort(together.wait[0]) == np.argsort(singly.wait[0])).all()


def test_numbers_stay_finite_for_experts_always_or_never_used() -> None:
    model = make()
    for layer in [*range(SHAPE.num_layers)] * 3000:
        model.observe(layer, np.array([[0, 1]]))
    assert np.isfinite(model.wait).all() and (model.wait > 0).all()
    assert (model.no_use[:, :2] < 0.1).all() and (model.no_use[:, 2:] > 0.9).all()


@pytest.mark.parametrize(
    ("layer", "ids"), [(-1, [[0, 1]]), (3, [[0, 1]]), (0, [[0, 7]]), (0, [[-1, 1]]), (0, [[0, 1, 2]])]
)
def test_a_routing_of_another_model_is_refused(layer: int, ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"no such|tokens, top_k"):
        make().observe(layer, np.array(ids))


def test_the_tables_outlive_the_model_and_cannot_be_written() -> None:
    model = make()
    wait = model.wait
    del model
    assert wait.shape == (3, 7) and (wait == pytest.approx(2.5))
    with pytest.raises(ValueError, match="read-only"):
        wait[0, 0] = 1
