"""The recurrence of Mamba by itself: natively and spelled out, against the recurrence as it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.layers.recurrent.mamba1 import ChannelScan, ChannelScanPart
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array

PART: Any = ChannelScanPart("rates", "skip")


def layers(channels: int, states: int, kernels: _native.Kernels) -> NativeLayers:
    rng = np.random.default_rng(channels)
    tensors = {"rates": rng.normal(0, 2, (channels, states)), "skip": rng.standard_normal(channels)}
    return NativeLayers(kernels, {name: stored(each.astype(np.float32)) for name, each in tensors.items()}, "f32")


def stored(array: Float32Array) -> StoredTensor:
    return StoredTensor(array.reshape(-1).view(np.uint8), "f32", array.shape)


def drawn(tokens: int, channels: int, states: int) -> list[Float32Array]:
    """steps, values, k, q, what is projected, and a state."""
    rng = np.random.default_rng(tokens)
    steps = rng.normal(-2, 8, (tokens, channels))
    widths = (channels, states, states, 2 * channels)
    rest = [rng.standard_normal((tokens, width)) for width in widths]
    return [each.astype(np.float32) for each in (steps, *rest, rng.standard_normal((states, channels)))]


def as_written(of: NativeLayers, given: list[Float32Array]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    steps, values, k, q, projected, state = (each.astype(np.float64) for each in given)
    skip = of.weights.vector("skip").astype(np.float64)
    rates = -np.exp(of.weights.vector("rates").astype(np.float64)).reshape(len(skip), -1)
    steps, gates, out = np.logaddexp(steps, 0), projected[:, -len(skip) :], np.empty_like(values)
    for t in range(len(out)):
        for c in range(len(skip)):
            state[:, c] = np.exp(steps[t, c] * rates[c]) * state[:, c] + steps[t, c] * values[t, c] * k[t]
            out[t, c] = state[:, c] @ q[t] + skip[c] * values[t, c]
    return out * gates / (1 + np.exp(-gates)), state


def given_by(rule: Any, given: list[Float32Array], *sizes: int, apart: bool = False) -> list[Float32Array]:
    """What a rule makes of the tokens, in calls of so many, and the state that they leave."""
    *by_token, state = given
    state, outs, at = state.copy(), [], 0
    for size in sizes or (len(by_token[0]),):
        new = np.empty_like(state) if apart else state
        outs.append(rule(*(each[at : at + size] for each in by_token), state, new))
        state, at = new, at + size
    return [np.concatenate(outs), state]


@pytest.mark.parametrize("isa", ["twin", *_native.available_isas()])
@pytest.mark.parametrize(("channels", "states"), [(5, 3), (77, 16), (300, 16)])
def test_any_number_of_tokens_gives_what_the_recurrence_gives(channels: int, states: int, isa: str) -> None:
    of = layers(channels, states, _native.Kernels(2, "" if isa == "twin" else isa))
    rule = ChannelScan(of.weights, PART) if isa == "twin" else of.make(PART)
    for tokens, apart in ((1, False), (2, True), (40, True), (40, False)):
        given = drawn(tokens, channels, states)
        for found, wanted in zip(given_by(rule, given, apart=apart), as_written(of, given), strict=True):
            assert np.abs(found - wanted).max() < 2e-5 * max(1.0, float(np.abs(wanted).max()))


def test_a_token_is_the_same_in_calls_of_any_length_on_any_number_of_threads_and_any_processor() -> None:
    given = drawn(40, 300, 16)
    whole = given_by(layers(300, 16, _native.Kernels(1)).make(PART), given)
    for isa in _native.available_isas():
        for threads, sizes in ((1, (1,) * 40), (2, (3, 36, 1)), (5, ())):
            found = given_by(layers(300, 16, _native.Kernels(threads, isa)).make(PART), given, *sizes)
            assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True)), isa


def test_numbers_that_are_none_stay_such() -> None:
    of, given = layers(70, 4, _native.Kernels(1)), drawn(3, 70, 4)
    given[0][0, 69] = np.nan
    out, state = given_by(of.make(PART), given)
    assert np.isnan(out[:, 69]).all() and np.isnan(state[:, 69]).all()
    assert np.isfinite(out[:, :69]).all() and np.isfinite(state[:, :69]).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    kernels = _native.Kernels(1)
    steps, values, k, q, projected, state = drawn(2, 8, 4)
    rates, skip, out = -np.ones((4, 8), np.float32), np.ones(8, np.float32), np.empty_like(values)
    whole: list[Any] = [steps, values, k, q, projected, rates, skip, state, state, out]
    _native.channel_scan(kernels, *whole)
    for match, at, array in (
        ("no tokens", 0, steps[:0]),
        ("steps, values and outputs", 1, values[:1]),
        ("steps, values and outputs", 9, out[:1]),
        ("keys and queries", 3, q[:1]),
        ("ends with its gates", 4, projected[:1]),
        ("ends with its gates", 4, projected[:, :7].copy()),
        ("rates and a state", 5, rates[:3]),
        ("rates and a state", 8, state[:3].copy()),
        ("a skip for each channel", 6, skip[:7]),
    ):
        with pytest.raises(ValueError, match=match):
            _native.channel_scan(kernels, *(array if i == at else each for i, each in enumerate(whole)))
