"""How probable tokens were: the log-softmax of the raw logits, whatever was done to draw from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import UsageError
from moeinf.sampling.logprobs import ChosenToken, ReportingSampler, chosen_token
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.sampler import Sampler
from moeinf.types import Float32Array


def plain(logits: Float32Array, token: int, num_top: int) -> ChosenToken:
    """The obvious twin: the logarithm of the softmax of everything, sorted."""
    weights = np.exp(logits.astype(np.float64))
    logs = np.log(weights / weights.sum())
    ranked = sorted(range(len(logs)), key=lambda i: (-logits[i], i))
    return ChosenToken(token, float(logs[token]), [(i, float(logs[i])) for i in ranked[:num_top]])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(0, 20), st.integers(0, 2**31), st.booleans())
def test_probabilities_are_those_of_a_plain_softmax(size: int, num_top: int, seed: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(size) * 5).astype(np.float32)
    logits = np.round(logits) if ties else logits
    token = int(random.integers(size))
    found, wanted = chosen_token(logits, token, num_top), plain(logits, token, num_top)
    assert found.token_id == token and [i for i, _ in found.top] == [i for i, _ in wanted.top]
    logs = [found.logprob, *(log for _, log in found.top)]
    assert np.allclose(logs, [wanted.logprob, *(log for _, log in wanted.top)], rtol=0, atol=1e-12)


def test_large_logits_have_probabilities_too() -> None:
    found = chosen_token(np.array([3e38, 3e38, 0], np.float32), 1, 1)
    assert found.logprob == pytest.approx(-np.log(2)) and found.top[0][0] == 0


def test_neither_the_draw_nor_what_changes_it_shows_in_the_report() -> None:
    params = SamplingParams(temperature=3, top_k=2, repeat_penalty=2, logit_bias={0: 50.0}, seed=5)
    logits = np.array([1, 5, 4, -2, 9], np.float32)
    reports: list[ChosenToken] = []
    sampler = ReportingSampler(Sampler(params, num_ids=4), 3, reports.append)
    drawn = [sampler.sample(logits, [1, 1]) for _ in range(20)]
    twin = Sampler(params, num_ids=4)
    assert drawn == [twin.sample(logits, [1, 1]) for _ in range(20)] == [each.token_id for each in reports]
    assert [i for i, _ in reports[0].top] == [1, 2, 0]  # the padding row, 4, is no token
    assert reports[0].top[0][1] == pytest.approx(plain(logits[:4], 0, 3).top[0][1])
    assert set(drawn) == {0}


@pytest.mark.parametrize("value", [-2, 21, 1.5, True])
def test_how_many_are_reported_is_checked(value: int) -> None:
    with pytest.raises(UsageError, match="top_logprobs must be"):
        SamplingParams(top_logprobs=value)
