from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf import _native
from moeinf.errors import MoeinfError, UsageError
from moeinf.sampling.beam_search import likeliest
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.sampling.ranking import largest, largest_and_equals
from moeinf.sampling.sampler import Sampler
from moeinf.types import Float32Array

GREEDY = SamplingParams(temperature=0)


def floats(values: Sequence[float]) -> Float32Array:
    return np.array(values, np.float32)


def plain_sample(params: SamplingParams, logits: Sequence[float], history: Sequence[int], uniform: float) -> int:
    """The obvious twin: one step after the other over all ids, in float64."""
    scores = np.array(logits, np.float64)
    n = params.repeat_last_n
    recent = list(history) if n < 0 else list(history)[len(history) - min(n, len(history)) :]
    for i, count in Counter(recent).items():
        scores[i] = scores[i] / params.repeat_penalty if scores[i] > 0 else scores[i] * params.repeat_penalty
        scores[i] -= count * params.frequency_penalty + params.presence_penalty
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if params.temperature == 0:
        return ranked[0]
    if params.top_k:
        least = scores[ranked[: params.top_k][-1]]
        ranked = [i for i in ranked if scores[i] >= least]
    weights = [math.exp(float(scores[i] - scores[ranked[0]]) / params.temperature) for i in ranked]
    probabilities = [weight / sum(weights) for weight in weights]
    kept: list[int] = []
    total = 0.0
    for i, p in zip(ranked, probabilities, strict=True):
        if kept and (total >= params.top_p or p < params.min_p * probabilities[0]):
            break
        kept.append(i)
        total += p
    kept.sort()
    weights = [math.exp(float(scores[i] - scores[ranked[0]]) / params.temperature) for i in kept]
    point = uniform * sum(weights)
    for i, weight in zip(kept, weights, strict=True):
        point -= weight
        if point < 0:
            return i
    return kept[-1]


def is_what_the_twin_draws(
    token: int, params: SamplingParams, logits: Float32Array, history: Sequence[int], uniform: float
) -> bool:
    """Whether the twin draws it, too, or would if a border were off by what float32 rounds."""
    scores, width = logits.tolist(), 2e-6
    if token == plain_sample(params, scores, history, uniform):
        return True
    return any(
        token == plain_sample(replace(params, top_p=top_p, min_p=min_p), scores, history, point)
        for top_p in {params.top_p, max(0, params.top_p - width), min(1, params.top_p + width)}
        for min_p in {params.min_p, max(0, params.min_p - width), min(1, params.min_p + width)}
        for point in (max(0, uniform - width), uniform, uniform + width)
    )


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(0, 2**31),
    st.floats(0, 3),
    st.integers(0, 45),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 2),
    st.integers(-1, 10),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_the_sampler_draws_what_its_plain_twin_draws(
    size: int,
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat: float,
    last_n: int,
    presence: float,
    frequency: float,
) -> None:
    options = (temperature, top_k, top_p, min_p, repeat, last_n, presence, frequency, seed)
    params = SamplingParams(*options, windowed_penalties=True)
    numbers = np.random.default_rng(seed)
    logits = numbers.normal(0, 3, size).astype(np.float32)
    history = numbers.integers(0, size, 12).tolist()
    uniform = np.random.Generator(np.random.PCG64(seed)).random()
    assert is_what_the_twin_draws(Sampler(params).sample(logits, history), params, logits, history, uniform)


@pytest.mark.parametrize("spread", [0, 0.01, 2.0, 9.0], ids=["equal", "flat", "steep", "steeper"])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(0, 1, 0), (0, 0.9, 0), (0, 0.3, 0), (700, 1, 0), (0, 1, 0.05), (0, 0, 0)]
)
def test_a_large_vocabulary_is_drawn_from_as_the_plain_twin_does(
    spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.round(np.random.default_rng(5).normal(0, spread, 3000), 3).astype(np.float32)  # many are equal
    for seed in range(4):
        uniform = np.random.Generator(np.random.PCG64(seed)).random()
        params = SamplingParams(1.3, top_k, top_p, min_p, seed=seed)
        assert is_what_the_twin_draws(Sampler(params).sample(logits, []), params, logits, [], uniform)


def test_a_token_is_drawn_for_its_share_of_the_range() -> None:
    scores = np.random.default_rng(6).normal(0, 1, 700).astype(np.float32)
    shares = np.exp(scores.astype(np.float64))
    ends = np.cumsum(shares) / shares.sum()
    for token in range(0, 700, 7):
        inside = (ends[token] - shares[token] / shares.sum() / 2, ends[token] - 1e-6)
        assert [_native.draw_token(scores, 1.0, 1.0, 0.0, uniform) for uniform in inside] == [token] * 2
    assert _native.draw_token(scores, 1.0, 1.0, 0.0, 1 - 2**-53) == 699


def test_what_weighs_nothing_is_not_drawn_at_the_end_of_the_range() -> None:
    scores = floats([0.0, 1000.0, 0.0, 1000.0, 0.0])
    assert _native.draw_token(scores, 1e-3, 1.0, 0.0, 1 - 2**-53) == 3
    assert _native.draw_token(scores, 1e-3, 1.0, 0.0, 0.0) == 1


def test_of_equals_at_the_border_the_first_are_the_largest() -> None:
    assert largest(floats([1, 3, 2, 2, 0, 2, 3]), 4).tolist() == [1, 2, 3, 6]
    assert largest(floats([1, 0]), 5).tolist() == [0, 1]
    assert largest_and_equals(floats([1, 3, 2, 2, 0, 2, 3]), 3).tolist() == [1, 2, 3, 5, 6]
    found = likeliest(np.zeros((2, 400), np.float32), np.zeros(2), 3)
    assert [entry[:2] for entry in found] == [(0, 0), (0, 1), (0, 2)]


def test_equal_seeds_draw_equal_tokens_and_others_others() -> None:
    logits = np.random.default_rng(1).standard_normal(500, np.float32)

    def draw(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed, temperature=2.0))
        return [sampler.sample(logits, []) for _ in range(50)]

    assert draw(7) == draw(7) != draw(8)


def test_a_random_seed_is_told_and_repeats_the_answer() -> None:
    logits = np.random.default_rng(1).standard_normal(100, np.float32)
    sampler = Sampler(SamplingParams(seed=-1))
    first = [sampler.sample(logits, []) for _ in range(20)]
    again = Sampler(SamplingParams(seed=sampler.seed))
    assert [again.sample(logits, []) for _ in range(20)] == first


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    assert Sampler(GREEDY).sample(floats([0.0, 5.0, 5.0, 5.0]), []) == 1
    assert Sampler(SamplingParams(temperature=0)).sample(floats([5.0, 5.0]), []) == 0


def test_what_equals_the_last_of_top_k_is_drawn_from_too() -> None:
    sampler = Sampler(SamplingParams(top_k=2, top_p=1, temperature=1, seed=3))
    assert {sampler.sample(floats([2, 1, 0, 1, 1, 0]), []) for _ in range(200)} == {0, 1, 3, 4}


@pytest.mark.parametrize("top_k", [-1, 0, 7, 10**400])
def test_a_top_k_of_none_or_more_than_there_are_draws_from_all(top_k: int) -> None:
    sampler = Sampler(SamplingParams(top_k=top_k, top_p=1, seed=3))
    assert {sampler.sample(np.zeros(7, np.float32), []) for _ in range(200)} == set(range(7))


def test_rows_beyond_the_tokenizer_are_never_drawn() -> None:
    logits = floats([0.0, 0.0, 100.0, 100.0])
    for params in (GREEDY, SamplingParams(top_k=0, top_p=1, seed=0)):
        assert Sampler(params, num_ids=2).sample(logits, [3, 3]) < 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    with pytest.raises(MoeinfError, match="non-finite logits"):
        Sampler(GREEDY).sample(floats([0.0, bad, 1.0]), [])


def test_large_finite_logits_are_no_error() -> None:
    assert Sampler(GREEDY).sample(floats([3e38, 3e38, 2e38]), []) == 0


def test_logits_are_left_as_they_are() -> None:
    logits = floats([1.0, 2.0, 3.0])
    Sampler(SamplingParams(repeat_penalty=2, presence_penalty=1, logit_bias={0: 5})).sample(logits, [0, 1, 2])
    assert logits.tolist() == [1, 2, 3]


def test_numbers_of_numpy_are_biases() -> None:
    params = SamplingParams(temperature=0, logit_bias={np.int64(2): np.float32(50)})
    assert Sampler(params).sample(np.zeros(4, np.float32), []) == 2


def test_a_bias_can_force_a_token() -> None:
    assert Sampler(SamplingParams(temperature=0, logit_bias={2: 50, 99: 50})).sample(np.zeros(4, np.float32), []) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 2),
        ("top_k", -2),
        ("temperature", math.nan),
        ("temperature", -1),
        ("temperature", 1e5),
        ("repeat_penalty", 0),
        ("top_k", 2.5),
        ("seed", True),
        ("stop", "END"),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: 1e39}),
        ("logit_bias", {3: -math.inf}),
        ("logit_bias", {3: True}),
        ("logit_bias", {3: "1"}),
        ("logit_bias", {"3": 1.0}),
        ("logit_bias", {True: 1.0}),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("seed", 0.5),
        ("num_predict", -3),
        ("repeat_last_n", -2),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^{name} must be "):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_what_is_given_goes_before_the_checkpoint_and_that_before_the_default() -> None:
    checkpoint = {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "eos_token_id": 3}
    params = resolve_params({"temperature": 1.0, "min_p": None}, checkpoint)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 20, 0.9, 0.0)


def test_a_checkpoint_that_does_not_sample_is_greedy_unless_told_otherwise() -> None:
    assert resolve_params({}, {"do_sample": False, "temperature": 0.7}).temperature == 0
    assert resolve_params({"temperature": 0.7}, {"do_sample": False}).temperature == 0.7


def test_nonsense_in_the_checkpoint_is_left_out() -> None:
    config = {"temperature": "hot", "top_p": 7, "top_k": 12.0, "repetition_penalty": 1.1}
    params = resolve_params({}, config)
    assert params == SamplingParams(top_k=12, repetition_penalty=1.1)


def test_unknown_options_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown option 'heat'; known: .*temperature"):
        resolve_params({"heat": 1})


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -5, True, "40", [40]])
def test_a_recommendation_that_is_no_such_number_is_left_out(value: object) -> None:
    assert resolve_params({}, generation_config={"top_k": value}).top_k == SamplingParams().top_k
    assert resolve_params({}, generation_config={"temperature": 10**400}).temperature == SamplingParams().temperature


def test_whole_numbers_beyond_a_float_are_numbers() -> None:
    assert resolve_params({"top_k": 10**400}).top_k == 10**400
    with pytest.raises(UsageError, match="temperature must be"):
        resolve_params({"temperature": 10**400})
