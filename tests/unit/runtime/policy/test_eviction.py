"""Eviction policies: what each keeps, and what all of them promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import NextUseScores, lowest
from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, NextUse, choose_victims, make_policy
from moeinf.runtime.policy.policy_protocol import EvictionPolicy
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.types import ExpertId, IntArray, MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=5, top_k=2)
SLOTS = 9  # of the cache, for policies that want to know


def policy(name: str, collection: ActivationCollection | None = None) -> EvictionPolicy:
    made = make_policy(name, SHAPE, collection or ActivationCollection(SHAPE), SLOTS)
    made.begin("prefill")
    made.begin("decode")
    return made


def routing(seed: int, tokens: int) -> IntArray:
    """[tokens, layers, top_k], the experts of a token distinct."""
    order = np.random.default_rng(seed).random((tokens, SHAPE.num_layers, SHAPE.num_experts)).argsort(axis=2)
    return order[:, :, : SHAPE.top_k]


def observe(observed: EvictionPolicy, tokens: IntArray) -> None:
    for token in tokens:
        for layer, ids in enumerate(token):
            observed.observe(layer, ids[None])


def test_victims_are_the_smallest_scores_that_may_be_evicted() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 1.0, 5.0]])
    evictable = np.array([[True, True, True], [False, True, True]])
    assert choose_victims(scores, evictable, 3) == [ExpertId(0, 1), ExpertId(1, 1), ExpertId(0, 2)]
    assert choose_victims(scores, evictable, 0) == []


@settings(max_examples=60)
@given(
    scores=st.lists(st.integers(-4, 4) | st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=60),
    seed=st.integers(0, 99),
    count=st.integers(0, 70),
)
def test_the_lowest_are_those_that_sorting_finds(scores: list[float], seed: int, count: int) -> None:
    """What is no number counts as the smallest: as many are found as there are, whatever a policy has come to."""
    rng, values = np.random.default_rng(seed), np.array(scores, np.float64)
    states = rng.integers(0, 3, len(scores)).astype(np.uint8)
    held = rng.permutation(len(scores))[: len(scores) // 4].tolist()
    among = [place for place in range(len(scores)) if states[place] == 2 and place not in held]
    numbers = np.where(np.isnan(values), -np.inf, values)
    assert lowest(values, states, 2, held, count) == sorted(among, key=lambda place: numbers[place])[:count]


def test_more_victims_than_there_are_experts_to_evict_are_refused() -> None:
    with pytest.raises(AssertionError, match="fewer experts may be evicted"):
        choose_victims(np.zeros((1, 3)), np.array([[True, False, True]]), 3)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("tokens", [1, 7])
def test_every_policy_scores_every_expert_after_any_visit(name: str, tokens: int) -> None:
    scored = policy(name)
    for layer in (0, 1, 2, 0):
        scored.observe(layer, routing(layer, tokens)[:, layer])
        scores = scored.keep_scores(layer)
        assert scores.shape == (3, 5) and scores.dtype == np.float64 and np.isfinite(scores).all()


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_routing_gives_the_same_scores(name: str) -> None:
    first, second = policy(name), policy(name)
    for scored in (first, second):
        observe(scored, routing(1, 20))
    assert (first.keep_scores(2) == second.keep_scores(2)).all()


@pytest.mark.parametrize("name", POLICIES)
def test_asking_for_scores_changes_nothing(name: str) -> None:
    asked, left_alone = policy(name), policy(name)
    for token in routing(2, 10):
        for layer, ids in enumerate(token):
            asked.observe(layer, ids[None])
            left_alone.observe(layer, ids[None])
            asked.keep_scores(layer)
            asked.keep_scores(layer)
    assert (asked.keep_scores(2) == left_alone.keep_scores(2)).all()


@pytest.mark.parametrize("name", POLICIES)
def test_an_expert_used_by_every_token_is_kept_before_one_never_used(name: str) -> None:
    scored = policy(name)
    for _ in range(30):
        for layer in range(3):
            scored.observe(layer, np.array([[1, 3]]))
    scores = scored.keep_scores(2)
    assert all(scores[layer, [1, 3]].min() > scores[layer, [0, 2, 4]].max() for layer in range(3))


def test_lru_orders_by_last_use() -> None:
    scored = policy("lru")
    scored.observe(0, np.array([[0, 1]]))
    scored.observe(1, np.array([[0, 1]]))
    scored.observe(0, np.array([[1, 2]]))
    scores = scored.keep_scores(0)
    assert scores[0, 3] < scores[0, 0] < scores[1, 0] < scores[0, 1] == scores[0, 2]


def test_lfu_orders_by_number_of_uses() -> None:
    scored = policy("lfu")
    scored.observe(0, np.array([[0, 1], [1, 2], [1, 3]]))
    assert scored.keep_scores(0)[0].tolist() == [1, 3, 1, 1, 0]


def test_the_papers_policy_uses_the_matched_request_with_decay_from_the_first_layer() -> None:
    collection = ActivationCollection(SHAPE)
    past = ActivationMatrix(SHAPE)
    for layer in range(3):
        past.record(layer, np.array([[0, 1], [0, 2]]))
    collection.add(past)
    scored = policy("paper", collection)
    scored.observe(0, np.array([[0, 4]]))
    expected = np.outer([1, 2 / 3, 1 / 3], [0.5, 0.25, 0.25, 0.0, 0.0])
    assert scored.keep_scores(0) == pytest.approx(expected, abs=1e-5)


def test_the_papers_policy_without_a_match_uses_the_running_request() -> None:
    scored = policy("paper")
    scored.observe(1, np.array([[0, 4]]))
    assert scored.keep_scores(1) == pytest.approx(np.outer([0, 2 / 3, 0], [0.5, 0, 0, 0, 0.5]), abs=1e-5)
    scored.begin("prefill")
    scored.observe(1, np.array([[2, 3]]))
    assert scored.keep_scores(1)[1] == pytest.approx([0, 0, 1 / 3, 1 / 3, 0], abs=1e-5)


def test_next_use_prefers_the_layer_that_runs_sooner() -> None:
    scored = policy("next-use")
    for _ in range(10):
        for layer in range(3):
            scored.observe(layer, np.array([[1, 3]]))
    scored.observe(0, np.array([[1, 3]]))
    scores = scored.keep_scores(0)
    assert scores[1, 1] > scores[2, 1] > scores[0, 1] - 1e-9


def test_next_use_keeps_what_a_running_prefill_has_yet_to_pass_before_what_it_has_passed() -> None:
    scored = policy("next-use")
    for layer in (0, 1, 2):
        scored.observe(layer, np.array([[1, 3]]))
    scored.observe(0, np.array([[0, 1], [2, 3], [1, 4]] * 40))
    scores = scored.keep_scores(0)
    assert scores[1:].min() > scores[0].max(), "with 120 tokens every expert of the layers to come is needed"


def test_next_use_forgets_what_was_popular_long_ago() -> None:
    scored = policy("next-use")
    for experts in [[0, 1]] * 60 + [[2, 3]] * 60:
        for layer in range(3):
            scored.observe(layer, np.array([experts]))
    scores = scored.keep_scores(2)
    assert scores[0, 2] > scores[0, 0] > scores[0, 4]


@pytest.mark.parametrize("tokens", [1, 40])
def test_next_use_expects_a_layer_of_the_encoder_with_the_next_source_only(tokens: int) -> None:
    shape = MoeShape(num_layers=5, num_experts=5, top_k=2)
    scored = NextUse(shape, encoder_layers=2)
    source, token = np.array([[1, 3]] * tokens), np.array([[1, 3]])
    for _ in range(40):  # until all is sure: the distance then decides
        for layer in range(2):
            scored.observe(layer, source)
        for layer in (2, 3, 4) * 3:
            scored.observe(layer, token)
    scores = scored.keep_scores(4)
    assert (scores[2:].min(axis=1) > scores[:2].max()).all(), "the least likely of the decoder stays before any other"
    assert scores[2, 1] > scores[3, 1] > scores[4, 1]
    assert scores[0, 1] > scores[0, 4], "of the encoder too, what is used often stays"
    scored.observe(0, source)
    scores = scored.keep_scores(0)
    assert scores[1, 1] > scores[2, 1] > scores[3, 1] > scores[0, 1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), encoder_layers=st.integers(0, 3), tokens=st.integers(1, 12))
def test_next_use_is_what_its_formula_says(seed: int, encoder_layers: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    no_use, wait = rng.random((4, 5)), 10 * rng.random((4, 5))
    scores = NextUseScores(no_use, wait, encoder_layers=encoder_layers, next_source=1000)
    scores.observed(tokens)
    step = max(1, 4 - encoder_layers)
    for running in range(4):
        found = scores.keep_scores(running)
        for layer in range(4):
            comes_again = 1000 * step if layer < encoder_layers else layer - running + step
            until = layer - running if layer > running else comes_again
            pass_has = encoder_layers if running < encoder_layers else 4
            of_one = tokens > 8  # what is told of fewer is of a pass of as many
            misses = no_use[layer] ** (tokens - 1) if of_one and running < layer < pass_has else 1.0
            np.testing.assert_allclose(found[layer], -until - wait[layer] * step * misses, rtol=1e-12)
    with pytest.raises(ValueError):
        scores.keep_scores(4)
    with pytest.raises(ValueError):
        NextUseScores(no_use, wait[:3], encoder_layers=0, next_source=1)


def test_next_use_counts_the_tokens_of_a_source_in_the_encoder_alone() -> None:
    shape = MoeShape(num_layers=4, num_experts=5, top_k=2)
    scored = NextUse(shape, encoder_layers=2)
    scored.observe(0, np.array([[0, 1], [2, 3], [1, 4]] * 40))
    scores = scored.keep_scores(0)
    assert np.allclose(scores[1], -1), "with 120 tokens every expert of the next layer is needed"
    assert scores[2:].max() < -3, "then comes one token"


def test_an_unknown_policy_is_refused_with_those_known() -> None:
    with pytest.raises(UsageError, match="lru, lfu, decayed-lfu, slru, lru-2, arc, paper-v1, paper, next-use"):
        policy("random")


@pytest.mark.parametrize("encoder_layers", [0, 1])
@pytest.mark.parametrize("name", POLICIES)
def test_what_a_device_makes_of_a_tokens_scores_orders_as_the_policy_itself(name: str, encoder_layers: int) -> None:
    made = make_policy(name, SHAPE, ActivationCollection(SHAPE), SLOTS, encoder_layers)
    observe(made, routing(5, 30))
    scores = made.token_scores().scores
    layers = np.arange(SHAPE.num_layers)
    for running in layers[encoder_layers:].tolist():
        ahead = layers - running
        away = np.where(ahead > 0, ahead, ahead + made.step) if made.step else 0 * ahead
        finished, wanted = (scores - away[:, None]).ravel(), made.keep_scores(running).ravel()
        assert np.array_equal(finished.argsort(kind="stable"), wanted.argsort(kind="stable"))


def test_what_the_running_token_uses_is_taken_to_be_likely_by_a_device() -> None:
    made = make_policy("next-use", SHAPE, ActivationCollection(SHAPE), SLOTS)
    assert isinstance(made, NextUse) and made.token_scores().used == pytest.approx(-2 * SHAPE.num_layers)
    recent = make_policy("lru", SHAPE, ActivationCollection(SHAPE), SLOTS)
    observe(recent, routing(1, 3))
    scores, used = recent.token_scores()
    assert used > scores.max()
