"""Predictors of the layers ahead."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import ActivationCollection, normalise_rows
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.plain_predictors import PopularityPredictor, PreviousTokenPredictor
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.runtime.policy.predictors import (
    NO_PREDICTOR,
    PREDICTORS,
    CombinedPredictor,
    CrossLayerPredictor,
    EamcPredictor,
    ReuseModel,
    make_predictor,
)
from moeinf.types import FloatArray, IntArray, MoeShape

SHAPE = MoeShape(num_layers=4, num_experts=6, top_k=2)
NAMED = [name for name in PREDICTORS if name != NO_PREDICTOR]


def made(name: str, collection: ActivationCollection) -> Predictor:
    predictor = make_predictor(name, SHAPE, collection)
    assert predictor is not None
    return predictor


def routing(rng: np.random.Generator, tokens: int = 1) -> IntArray:
    """[layers, tokens, top_k], the experts of a token distinct."""
    return rng.random((SHAPE.num_layers, tokens, SHAPE.num_experts)).argsort(axis=2)[:, :, : SHAPE.top_k]


def entry(*experts: tuple[int, int]) -> ActivationMatrix:
    """The matrix of one token."""
    matrix = ActivationMatrix(SHAPE)
    for layer, pair in enumerate(experts):
        matrix.record(layer, np.array([pair]))
    return matrix


def collection_of_two() -> ActivationCollection:
    collection = ActivationCollection(SHAPE)
    collection.add(entry((0, 1), (0, 1), (0, 1), (0, 1)))
    collection.add(entry((2, 3), (2, 3), (4, 5), (3, 5)))
    return collection


def run_pass(predictor: Predictor | ReuseModel, routed: IntArray, layers: int = SHAPE.num_layers) -> None:
    for layer in range(layers):
        predictor.observe(layer, routed[layer])


def top(likelihood: FloatArray | None, ahead: int = 1) -> list[int]:
    assert likelihood is not None
    return sorted(np.argsort(-likelihood[ahead - 1], kind="stable")[: SHAPE.top_k].tolist())


@pytest.mark.parametrize("name", [*NAMED, "look-ahead+eamc", "popularity+frequency"])
def test_there_is_no_prediction_without_evidence(name: str) -> None:
    predictor = made(name, ActivationCollection(SHAPE))
    predictor.begin("prefill")
    assert predictor.predict(0) is None


@pytest.mark.parametrize("name", ["eamc", "frequency", "cross-layer", "popularity+eamc"])
def test_a_prediction_is_of_the_layers_ahead_alone(name: str) -> None:
    predictor = made(name, collection_of_two())
    predictor.begin("prefill")
    run_pass(predictor, routing(np.random.default_rng(0), tokens=5))
    predictor.begin("decode")
    for layer, ids in enumerate(routing(np.random.default_rng(1))):
        predictor.observe(layer, ids)
        likelihood = predictor.predict(layer)
        assert likelihood is not None and likelihood.shape == (3 - layer, 6)
        assert (likelihood.sum(axis=1) > 0).all() and (likelihood <= 1).all()


def test_the_matched_request_is_what_eamc_predicts() -> None:
    predictor = EamcPredictor(collection_of_two(), num_matches=1)
    predictor.begin("prefill")
    predictor.observe(0, np.array([[2, 4]]))
    likelihood = predictor.predict(0)
    assert top(likelihood, 1) == [2, 3] and top(likelihood, 2) == [4, 5] and top(likelihood, 3) == [3, 5]


def test_several_matches_are_summed_and_rescaled_to_top_k() -> None:
    collection = collection_of_two()
    predictor = EamcPredictor(collection, num_matches=2)
    predictor.begin("prefill")
    predictor.observe(0, np.array([[0, 2]]))
    likelihood = predictor.predict(0)
    both = collection.counts(0) + collection.counts(1)
    assert likelihood is not None
    assert likelihood == pytest.approx(normalise_rows(both)[1:] * SHAPE.top_k)


def test_eamc_matches_the_running_pass_and_forgets_the_one_before() -> None:
    predictor = EamcPredictor(collection_of_two(), num_matches=1)
    predictor.begin("prefill")
    run_pass(predictor, np.array([[[0, 1]]] * 4))
    predictor.begin("decode")
    predictor.observe(0, np.array([[2, 3]]))
    assert top(predictor.predict(0)) == [2, 3]


def test_use_probability_is_the_same_for_tokens_together_and_one_by_one() -> None:
    together, singly = ReuseModel(SHAPE), ReuseModel(SHAPE)
    singly.LEARNING_RATE = 0.0  # type: ignore[misc]  # many at once are counted, not learned from
    routed = routing(np.random.default_rng(2), tokens=9)
    run_pass(together, routed)
    for token in range(9):
        run_pass(singly, routed[:, token : token + 1])
    assert together.logits == pytest.approx(singly.logits)


def test_use_probability_learns_the_rate_of_each_expert() -> None:
    rng, use = np.random.default_rng(3), ReuseModel(SHAPE)
    rates = np.array([0.9, 0.6, 0.3, 0.1, 0.05, 0.02])
    used = np.zeros(6)
    estimates = []
    for token in range(1500):
        experts = rng.choice(6, size=2, replace=False, p=rates / rates.sum())
        if token >= 500:
            estimates.append(1 / (1 + np.exp(-use.logits[0])))
            used[experts] += 1
        use.observe(0, experts[None])
    assert np.mean(estimates, axis=0) == pytest.approx(used / 1000, abs=0.12)  # leans to the mean
    assert (np.diff(np.mean(estimates, axis=0)) < 0).all()


def test_use_probability_stays_finite_for_experts_always_or_never_used() -> None:
    use = ReuseModel(SHAPE)
    for _ in range(3000):
        run_pass(use, np.array([[[0, 1]]] * 4))
    assert np.isfinite(use.logits).all()
    assert (use.logits[:, :2] > 2).all() and (use.logits[:, 2:] < -2).all()


def test_cross_layer_learns_which_experts_follow_which() -> None:
    rng, predictor = np.random.default_rng(4), CrossLayerPredictor(SHAPE)
    predictor.begin("prefill")
    predictor.begin("decode")
    right = 0
    for token in range(400):
        routed = routing(rng)
        routed[2, 0] = (routed[1, 0] + 1) % 6  # layer 2 follows layer 1, which is random
        for layer in range(4):
            predictor.observe(layer, routed[layer])
            if layer == 1 and token >= 300:
                right += top(predictor.predict(1)) == sorted(routed[2, 0].tolist())
    assert right >= 95


def test_cross_layer_counts_the_pairs_of_a_prefill_as_those_of_single_tokens() -> None:
    together, singly = CrossLayerPredictor(SHAPE), CrossLayerPredictor(SHAPE)
    routed = routing(np.random.default_rng(5), tokens=40)
    run_pass(together, routed)
    for token in range(40):
        run_pass(singly, routed[:, token : token + 1])
    assert (together._pairs == singly._pairs).all()
    assert (together._uses == singly._uses).all() and (together._tokens == singly._tokens).all()


def test_popularity_is_the_share_of_tokens_that_used_an_expert_of_the_next_layer() -> None:
    predictor = PopularityPredictor(SHAPE)
    run_pass(predictor, np.array([[[0, 1], [0, 2], [0, 3]]] * 4))
    run_pass(predictor, np.array([[[4, 5]]] * 4))
    assert predictor.predict(1) == pytest.approx(np.array([[0.75, 0.25, 0.25, 0.25, 0.25, 0.25]]))
    assert predictor.predict(3) is None, "nothing is behind the last layer"


def test_the_previous_tokens_experts_are_as_likely_as_such_were_so_far() -> None:
    predictor = PreviousTokenPredictor(SHAPE)
    again, used = predictor.FIRST_SHARE
    for token in ([0, 1], [1, 2], [1, 2], [0, 3]):  # of four layers each
        run_pass(predictor, np.array([[token]] * 4))
    share = (again + 4 * 3) / (used + 4 * 6)
    likelihood = predictor.predict(1)
    assert likelihood is not None and likelihood == pytest.approx(np.array([[share, 0, 0, share, 0, 0]] * 2))


def test_a_prompt_tells_the_experts_of_its_last_token_and_no_share() -> None:
    predictor = PreviousTokenPredictor(SHAPE)
    run_pass(predictor, np.array([[[0, 1], [2, 3]]] * 4))
    run_pass(predictor, np.array([[[0, 1], [4, 5]]] * 4))
    likelihood = predictor.predict(0)
    again, used = predictor.FIRST_SHARE
    assert likelihood is not None and likelihood[0] == pytest.approx(np.array([0, 0, 0, 0, 1, 1]) * again / used)


def test_a_second_predictor_tells_of_the_layers_that_the_first_does_not_see() -> None:
    near, far = LookAheadPredictor(SHAPE), EamcPredictor(collection_of_two(), num_matches=1)
    both = CombinedPredictor(near, far)
    assert both.name == "look-ahead+eamc" and both.wants_guesses and not far.wants_guesses
    both.begin("prefill")
    both.observe(0, np.array([[2, 4]]))
    alone = far.predict(0)
    assert alone is not None and both.predict(0) == pytest.approx(alone), "without a guess the other tells of all"
    near.expect(1, np.array([[0, 5]]), np.array([[0.5, 0.5]], np.float32))
    likelihood = both.predict(0)
    assert likelihood is not None and likelihood.shape == (3, 6)
    assert likelihood[0].nonzero()[0].tolist() == [0, 5] and likelihood[1:] == pytest.approx(alone[1:])


def test_no_predictor_is_a_name_as_well() -> None:
    assert make_predictor(NO_PREDICTOR, SHAPE, ActivationCollection(SHAPE)) is None


@pytest.mark.parametrize(
    "name", ["oracle", "", "eamc+", "eamc+eamc", "none+eamc", "eamc+frequency+popularity", "paper"]
)
def test_an_unknown_predictor_is_refused_with_those_known(name: str) -> None:
    with pytest.raises(UsageError, match="none, popularity, previous-token, eamc, frequency, cross-layer, look-a"):
        make_predictor(name, SHAPE, ActivationCollection(SHAPE))


def test_cross_layer_knows_nothing_in_front_of_the_first_layer() -> None:
    predictor = CrossLayerPredictor(SHAPE)
    run_pass(predictor, routing(np.random.default_rng(0)))
    predictor.begin("decode")
    assert predictor.predict(-1) is None
