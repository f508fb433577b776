"""Penalties: which tokens each of them sees, and that every legal combination leads to a draw."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import UsageError
from moeinf.sampling.bans import Bans
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.sampling.penalties import Counts
from moeinf.sampling.sampler import Sampler, check_token_ids
from moeinf.types import IntArray

END, OTHER, FILLER = 0, 1, 2
LARGEST = float(np.finfo(np.float32).max)


class Allowing:
    """A format that allows the same tokens always."""

    complete = False

    def __init__(self, ids: list[int]) -> None:
        self._ids = np.array(ids)

    def allowed(self) -> IntArray:
        return self._ids

    def accept(self, token: int) -> None:
        assert token in self._ids


def answer(params: SamplingParams, logits: list[float], prompt: list[int], length: int, **options: object) -> list[int]:
    """The tokens that are drawn where the model always says the same."""
    sampler = Sampler(params, **options)  # type: ignore[arg-type]
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(sampler.sample(np.array(logits, np.float32), tokens))
    return tokens[len(prompt) :]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.none() | st.integers(0, 12), st.integers(0, 12), st.integers(0, 40))
def test_tokens_are_counted_as_by_a_walk_over_the_window(
    history: list[int], window: int | None, start: int, begun: int
) -> None:
    counts = Counts(window, start)
    for end in range(max(start, begun), len(history) + 1):
        ids, numbers = counts.follow(history[:end], 8)
        seen = history[start if window is None else max(start, end - window) : end]
        wanted = Counter(token for token in seen if token < 8)
        assert dict(zip(ids.tolist(), numbers.tolist(), strict=True)) == wanted


def test_presence_penalty_of_the_answer_sees_no_token_of_the_prompt() -> None:
    params = SamplingParams(temperature=0, presence_penalty=1.5)
    assert answer(params, [5.0, 4.0, -9.0], [FILLER, END, FILLER], 2) == [END, OTHER]


@pytest.mark.parametrize("length", [3, 200])
def test_frequency_penalty_of_the_answer_counts_all_of_it(length: int) -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1)
    drawn = Counter(answer(params, [5.25, 4.0, -900.0], [OTHER] * 90, length))
    assert drawn[END] - drawn[OTHER] in (1, 2) and drawn.total() == length


def test_penalties_of_a_window_see_prompt_and_answer_within_it() -> None:
    params = SamplingParams(temperature=0, presence_penalty=1.5, repeat_last_n=3, windowed_penalties=True)
    assert answer(params, [5.0, 4.0, -9.0], [END, FILLER, FILLER], 1) == [OTHER]
    assert answer(params, [5.0, 4.0, -9.0], [END, FILLER, FILLER, FILLER], 1) == [END]


@pytest.mark.parametrize(("window", "first"), [(0, END), (64, END), (65, OTHER), (-1, OTHER)])
def test_repeat_penalty_sees_the_last_n_tokens(window: int, first: int) -> None:
    params = SamplingParams(temperature=0, repeat_penalty=1.3, repeat_last_n=window)
    assert answer(params, [5.0, 4.0, -9.0], [END] + [FILLER] * 64, 1) == [first]


def test_a_checkpoints_repetition_penalty_sees_every_token_whatever_the_window() -> None:
    for window in (0, 64, -1):
        params = resolve_params({"repeat_last_n": window}, {"repetition_penalty": 1.3, "do_sample": False})
        assert answer(params, [4.0, 5.0, -9.0], [OTHER] + [FILLER] * 500, 1) == [END]


def test_a_repeat_penalty_that_is_given_takes_the_place_of_the_checkpoints() -> None:
    params = resolve_params({"repeat_penalty": 1.0}, {"repetition_penalty": 1.3})
    assert (params.repeat_penalty, params.repetition_penalty) == (1.0, 1.0)
    both = resolve_params({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, {"repetition_penalty": 1.3})
    assert (both.repeat_penalty, both.repetition_penalty) == (1.1, 1.2)


def test_nothing_ends_an_answer_before_its_fewest_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=3)
    assert answer(params, [9.0, 4.0, 1.0], [FILLER] * 7, 5, ends={END}) == [OTHER, OTHER, OTHER, END, END]


def test_what_a_format_wants_goes_before_a_ban() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, bans=Bans(suppress_tokens=(FILLER,)))
    assert answer(params, [9.0, 4.0, 1.0], [], 2, ends={END}, constraint=Allowing([END])) == [END, END]
    assert answer(params, [9.0, 4.0, 1.0], [], 2, ends={END}, constraint=Allowing([END, OTHER])) == [OTHER, OTHER]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, LARGEST, -LARGEST, 3e38, 1e-45, -1.0]), min_size=1, max_size=20),
    st.tuples(
        st.sampled_from([0, 1e-300, 0.7, 1e4]), st.sampled_from([-1, 0, 1, 5]), *[st.sampled_from([0, 0.3, 1])] * 2
    ),
    st.tuples(*[st.sampled_from([1e-3, 1, 1.1, 1e3])] * 2),
    st.tuples(*[st.sampled_from([-1e3, 0, 1e3])] * 2),
    st.sampled_from([-1e4, 0.0, 1e4]),
    st.booleans(),
    st.sampled_from([0, 0.5, 1]),
)
def test_every_legal_combination_leads_to_a_draw(
    logits: list[float],
    truncation: tuple[float, int, float, float],
    repeat: tuple[float, float],
    subtract: tuple[float, float],
    bias: float,
    windowed_penalties: bool,
    typical_p: float,
) -> None:
    params = SamplingParams(
        *truncation,
        repeat_penalty=repeat[0],
        repetition_penalty=repeat[1],
        presence_penalty=subtract[0],
        frequency_penalty=subtract[1],
        logit_bias=dict.fromkeys(range(len(logits)), bias),
        windowed_penalties=windowed_penalties,
        typical_p=typical_p,
        bans=Bans(sequence_bias=(((0,), 3e38),), min_length=8),
    )
    drawn = answer(params, logits, [0, len(logits) - 1], 6, ends={0})
    assert all(0 <= token < len(logits) for token in drawn)


@pytest.mark.parametrize("token", [-1, 3, 10**30])
def test_a_bias_of_no_token_is_refused_by_name(token: int) -> None:
    with pytest.raises(UsageError, match=f"logit_bias names token {token}, but the ids of this model go from 0 to 2"):
        check_token_ids(SamplingParams(logit_bias={0: 1.0, token: 1.0}), 3)


@pytest.mark.parametrize("seed", [0, -2, 2**63, -(10**30)])
def test_any_whole_number_is_a_seed_that_repeats(seed: int) -> None:
    logits = list(np.random.default_rng(1).standard_normal(50))
    first, again = (answer(SamplingParams(seed=seed, temperature=3.0), logits, [], 20) for _ in range(2))
    assert first == again != answer(SamplingParams(seed=seed + 1, temperature=3.0), logits, [], 20)
    sampler = Sampler(SamplingParams(seed=seed))
    assert 0 <= sampler.seed < 2**64
