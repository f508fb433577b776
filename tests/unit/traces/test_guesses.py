"""Guesses at a routing: drawn ones have the quality that was asked for, and do not depend on who asks when."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.errors import UsageError
from moeinf.traces.guesses import BLOCK_TOKENS, DrawnGuesses, LookAheadQuality, RecordedGuesses, guesses_of
from moeinf.traces.trace import Trace
from moeinf.types import MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=20, top_k=4, counts=(20, 20, 12))


def trace(tokens: int = 700) -> Trace:
    order = np.random.default_rng(1).random((tokens, 3, 20))
    order[:, 2, 12:] = 2.0
    experts = order.argsort(axis=2)[:, :, :4]
    experts[2, 0] = -1  # a token of a decoder, which does not visit the encoder
    return Trace("drawn", SHAPE, experts, np.array([0, tokens]))


@pytest.mark.parametrize(
    ("recall", "precision", "confidence"), [(0.85, 0.85, 1.0), (0.6, 1.0, 1.0), (0.9, 0.5, 1.0), (0.7, 0.7, 3.0)]
)
def test_drawn_guesses_have_the_recall_precision_and_confidence(
    recall: float, precision: float, confidence: float
) -> None:
    recorded = trace()
    guesses = DrawnGuesses(recorded, LookAheadQuality(recall, precision, confidence))
    right = wrong = true = 0
    weight_right = weight_wrong = 0.0
    for token in range(700):
        for layer in range(3):
            guess = guesses.at(token, token + 1, layer)
            truth = set(recorded.experts[token, layer].tolist()) - {-1}
            true += len(truth)
            if guess is None:
                continue
            assert truth, "no guess at a layer that is not visited"
            named = {int(j): float(w) for j, w in zip(guess.ids[0], guess.weights[0], strict=True) if w > 0}
            assert len(named) == np.count_nonzero(guess.weights[0]) and max(named) < SHAPE.experts_of(layer)
            assert recall != precision or len(named) == SHAPE.top_k
            right += len(truth & named.keys())
            wrong += len(named.keys() - truth)
            weight_right += sum(named[j] for j in truth & named.keys())
            weight_wrong += sum(named[j] for j in named.keys() - truth)
    assert right / true == pytest.approx(recall, abs=0.02)
    assert right / (right + wrong) == pytest.approx(precision, abs=0.02)
    if wrong:
        assert weight_right / right / (weight_wrong / wrong) == pytest.approx(confidence, rel=0.06)


def test_what_is_drawn_depends_on_the_seed_and_the_token_alone() -> None:
    recorded, quality = trace(), LookAheadQuality(0.7, 0.6, 2.0)
    asked, backwards, other = (DrawnGuesses(recorded, quality, seed) for seed in (4, 4, 5))
    places = [(token, layer) for token in (0, 3, BLOCK_TOKENS - 1, BLOCK_TOKENS, 600) for layer in range(3)]
    first = {place: asked.at(place[0], place[0] + 1, place[1]) for place in places}
    again = {place: backwards.at(place[0], place[0] + 1, place[1]) for place in reversed(places)}
    different = False
    for place in places:
        one, two, three = first[place], again[place], other.at(place[0], place[0] + 1, place[1])
        assert one is not None and two is not None and three is not None
        assert (one.ids == two.ids).all() and (one.weights == two.weights).all()
        different |= one.ids.shape != three.ids.shape or bool((one.ids != three.ids).any())
    assert different, "another seed draws other guesses"


def test_the_guess_at_many_tokens_is_that_at_each_of_them() -> None:
    guesses = DrawnGuesses(trace(), LookAheadQuality(0.7, 0.6))
    first, last = BLOCK_TOKENS - 3, BLOCK_TOKENS + 2  # of two blocks
    together = guesses.at(first, last, 1)
    assert together is not None and len(together.ids) == 5
    for row, token in enumerate(range(first, last)):
        alone = guesses.at(token, token + 1, 1)
        assert alone is not None
        named = together.weights[row] > 0
        assert set(together.ids[row][named].tolist()) == set(alone.ids[0][alone.weights[0] > 0].tolist())


def test_recorded_guesses_are_those_of_the_trace() -> None:
    recorded = trace(3)
    ids = np.where(np.arange(4) < 3, recorded.experts, -1)
    ids[2, 1] = -1
    weights = np.full(ids.shape, 0.25, np.float32)
    made = RecordedGuesses(Trace("r", SHAPE, recorded.experts, recorded.offsets, guesses=ids, guess_weights=weights))
    guess = made.at(0, 3, 1)
    assert guess is not None and guess.ids.min() >= 0
    assert guess.weights.tolist() == [[0.25, 0.25, 0.25, 0], [0.25, 0.25, 0.25, 0], [0, 0, 0, 0]]
    assert made.at(2, 3, 1) is None


def test_drawn_guesses_come_before_recorded_ones_and_none_is_none() -> None:
    recorded = trace(3)
    assert guesses_of(recorded, None) is None
    assert isinstance(guesses_of(recorded, LookAheadQuality(1.0, 1.0)), DrawnGuesses)
    full = Trace(
        "r",
        SHAPE,
        recorded.experts,
        recorded.offsets,
        guesses=recorded.experts,
        guess_weights=np.ones(recorded.experts.shape, np.float32),
    )
    assert isinstance(guesses_of(full, None), RecordedGuesses)


@pytest.mark.parametrize("wrong", [(0.0, 0.5, 1.0), (0.5, 1.1, 1.0), (0.5, 0.5, 0.0), (float("nan"), 0.5, 1.0)])
def test_a_quality_that_no_guess_can_have_is_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="--lookahead-"):
        LookAheadQuality(*wrong)
