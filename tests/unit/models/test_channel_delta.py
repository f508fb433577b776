"""The delta rule with a decay for each channel: natively and in chunks, against the recurrence as it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.math import NumpyMath
from moeinf.models.layers.recurrent.channel_delta import ChannelDeltaPart, ChannelDeltaRule
from moeinf.types import Float32Array

HEADS = 3
Rule = Callable[..., Float32Array]


def drawn(tokens: int, dim: int) -> list[Float32Array]:
    """q, k, v, decay, rate and a state; channels keep nothing to nearly all."""
    rng = np.random.default_rng(dim + tokens)
    q, k, v = rng.standard_normal((3, tokens, HEADS, dim)) / dim**0.5
    decay = -np.minimum(np.exp(rng.normal(-2, 3, (tokens, HEADS, dim))), 8)
    rate, state = rng.uniform(0, 1, (tokens, HEADS)), rng.standard_normal((HEADS, dim, dim))
    return [each.astype(np.float32) for each in (q, k, v, decay, rate, state)]


def as_written(given: list[Float32Array]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    q, k, v, decay, rate, state = (each.astype(np.float64) for each in given)
    out = np.empty_like(v)
    for t in range(len(q)):
        for h in range(HEADS):
            kept = np.exp(decay[t, h])[:, None] * state[h]
            state[h] = kept + rate[t, h] * np.outer(k[t, h], v[t, h] - kept.T @ k[t, h])
            out[t, h] = state[h].T @ q[t, h]
    return out, state


def given_by(rule: Rule, given: list[Float32Array], *sizes: int) -> tuple[Float32Array, Float32Array]:
    """What a rule makes of the tokens, in calls of so many."""
    *by_token, state = given
    state, outs, at = state.copy(), [], 0
    for size in sizes or (len(given[0]),):
        q, k, v, decay, rate = (np.ascontiguousarray(each[at : at + size]) for each in by_token)
        outs.append(rule(q, k, v, decay, rate, state, state))
        at += size
    return np.concatenate(outs), state


@pytest.mark.parametrize("isa", ["twin", *_native.available_isas()])
@pytest.mark.parametrize("dim", [5, 32, 77, 128])
def test_any_number_of_tokens_gives_what_the_recurrence_gives(dim: int, isa: str) -> None:
    layers = NativeLayers(_native.Kernels(2, "" if isa == "twin" else isa), {}, "f32")
    rule: Rule = ChannelDeltaRule(NumpyMath()) if isa == "twin" else layers.make(ChannelDeltaPart())
    for tokens in (1, 2, 16, 17, 70):
        given = drawn(tokens, dim)
        for found, wanted in zip(given_by(rule, given), as_written(given), strict=True):
            close = 1e-4 if isa == "twin" else 2e-5  # in chunks, decays are differences of sums
            assert np.abs(found - wanted).max() < close * max(1.0, float(np.abs(wanted).max()))


def test_a_token_is_the_same_in_calls_of_any_length_and_on_any_number_of_threads() -> None:
    given = drawn(40, 24)
    whole = given_by(NativeLayers(_native.Kernels(1), {}, "f32").make(ChannelDeltaPart()), given)
    for threads, sizes in ((1, (1,) * 40), (2, (3, 36, 1)), (5, ())):
        found = given_by(NativeLayers(_native.Kernels(threads), {}, "f32").make(ChannelDeltaPart()), given, *sizes)
        assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True))


def test_shapes_that_do_not_fit_are_refused() -> None:
    kernels = _native.Kernels(1)
    q, k, v, decay, rate, state = drawn(2, 8)
    out = np.empty((HEADS, 2, 8), np.float32)
    for match, arguments in (
        ("queries, keys", (q, k[:1], v, decay, rate, state, state, out)),
        ("queries, keys", (q, k, v, decay[..., :3].copy(), rate, state, state, out)),
        ("rates", (q, k, v, decay, rate[:, :1].copy(), state, state, out)),
        ("state", (q, k, v, decay, rate, state[:1], state, out)),
        ("outputs", (q, k, v, decay, rate, state, state, out[:1])),
        ("no tokens", (q[:0], k[:0], v[:0], decay[:0], rate[:0], state, state, out)),
    ):
        with pytest.raises(ValueError, match=match):
            _native.channel_delta(kernels, *arguments)
