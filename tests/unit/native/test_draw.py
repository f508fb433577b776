"""draw_token by itself: whatever floats it is given, a token that may be drawn, or a ValueError."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf import _native
from moeinf.types import Float32Array

LARGEST = float(np.finfo(np.float32).max)
ANY_SCORE = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, LARGEST, -LARGEST, 1e-45, -1e-40, 88.0, math.inf, -math.inf, math.nan]
)
ANY_NUMBER = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 1e39, 5e-324, math.inf, -math.inf, math.nan]
)


def scores_of(pattern: list[float], size: int) -> Float32Array:
    return np.resize(np.array(pattern, np.float32), size)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(ANY_SCORE | st.floats(-50, 50, width=32), min_size=1, max_size=6),
    st.sampled_from([0, 1, 2, 15, 16, 17, 1024, 1025, 4097]),
    st.tuples(ANY_NUMBER, ANY_NUMBER, ANY_NUMBER, ANY_NUMBER),
)
def test_any_floats_lead_to_a_token_that_may_be_drawn_or_to_an_error(
    pattern: list[float], size: int, options: tuple[float, float, float, float]
) -> None:
    scores = scores_of(pattern, size)
    try:
        drawn = _native.draw_token(scores, *options)
    except (ValueError, TypeError):
        return
    assert 0 <= drawn < size and np.isfinite(scores[drawn])


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.sampled_from([0.0, LARGEST, -LARGEST, 1e-45, 88.0, -math.inf]) | st.floats(-50, 50, width=32), min_size=1
    ),
    st.sampled_from([1, 2, 15, 16, 17, 1024, 1025, 4097]),
    st.sampled_from([1e-300, 1e-30, 1e-3, 0.6, 1.0, 1e4, 1e30, LARGEST]),
    st.sampled_from([0.0, 1e-45, 0.3, 0.95, 1 - 2**-24, 1.0, 2.0]),
    st.sampled_from([-1.0, 0.0, 1e-45, 0.05, 1.0]),
    st.sampled_from([0.0, 0.5, 1 - 2**-53, 1.0]),
)
def test_every_legal_draw_has_a_result(
    pattern: list[float], size: int, temperature: float, top_p: float, min_p: float, uniform: float
) -> None:
    scores = scores_of(pattern, size)
    if not np.isfinite(scores).any():
        with pytest.raises(ValueError, match="all are minus infinity"):
            _native.draw_token(scores, temperature, top_p, min_p, uniform)
        return
    drawn = _native.draw_token(scores, temperature, top_p, min_p, uniform)
    assert np.isfinite(scores[drawn])
    if top_p == 0 or min_p == 1:
        assert scores[drawn] == scores.max()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 15, 16, 4095])
def test_a_score_that_can_win_by_no_rule_is_refused(bad: float, place: int) -> None:
    scores = np.linspace(-1, 1, 4096, dtype=np.float32)
    scores[place] = bad
    for top_p in (0.0, 0.9, 1.0):
        with pytest.raises(ValueError, match="NaN or infinite"):
            _native.draw_token(scores, 0.8, top_p, 0.0, 0.5)


def test_a_banned_score_is_never_drawn() -> None:
    scores = np.full(3000, -math.inf, np.float32)
    scores[[7, 2999]] = [-LARGEST, -LARGEST]
    for temperature in (1e-3, 1.0, LARGEST):
        assert [_native.draw_token(scores, temperature, 1.0, 0.0, uniform) for uniform in (0, 0.4, 0.6, 1)] == [
            *(7, 7),
            *(2999, 2999),
        ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((0.0, 1.0, 0.0, 0.5), "temperature"),
        ((1e39, 1.0, 0.0, 0.5), "temperature"),
        ((math.nan, 1.0, 0.0, 0.5), "temperature"),
        ((1.0, math.nan, 0.0, 0.5), "top_p"),
        ((1.0, -0.1, 0.0, 0.5), "top_p"),
        ((1.0, 1.0, math.nan, 0.5), "min_p"),
        ((1.0, 1.0, 1.5, 0.5), "min_p"),
        ((1.0, 1.0, 0.0, math.nan), "drawn number"),
        ((1.0, 1.0, 0.0, -0.1), "drawn number"),
        ((1.0, 1.0, 0.0, 1.1), "drawn number"),
    ],
)
def test_a_draw_out_of_range_is_refused_by_name(options: tuple[float, float, float, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _native.draw_token(np.zeros(5, np.float32), *options)
    with pytest.raises(ValueError, match="no scores"):
        _native.draw_token(np.zeros(0, np.float32), 1.0, 1.0, 0.0, 0.5)
