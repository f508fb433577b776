"""The recurrence of Mamba-2 by itself: natively and in chunks, against the recurrence as it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.math import NumpyMath
from moeinf.models.layers.recurrent.mamba2 import Scan, ScanPart
from moeinf.types import Float32Array

HEADS = 3


def drawn(tokens: int, dim: int) -> list[Float32Array]:
    """q, k, v, decay and a state."""
    rng = np.random.default_rng(dim + tokens)
    q, k, v = rng.standard_normal((3, tokens, HEADS, dim)) / dim**0.5
    decay = -np.minimum(np.exp(rng.normal(-2, 3, (tokens, HEADS))), 8)
    return [each.astype(np.float32) for each in (q, k, v, decay, rng.standard_normal((HEADS, dim, dim)))]


def as_written(given: list[Float32Array]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    q, k, v, decay, state = (each.astype(np.float64) for each in given)
    out = np.empty_like(v)
    for t in range(len(q)):
        for h in range(HEADS):
            state[h] = np.exp(decay[t, h]) * state[h] + np.outer(k[t, h], v[t, h])
            out[t, h] = state[h].T @ q[t, h]
    return out, state


def given_by(rule: Any, given: list[Float32Array], *sizes: int) -> tuple[Float32Array, Float32Array]:
    """What a rule makes of the tokens, in calls of so many."""
    *by_token, state = given
    state, outs, at = state.copy(), [], 0
    for size in sizes or (len(given[0]),):
        outs.append(rule(*(each[at : at + size] for each in by_token), state, state))
        at += size
    return np.concatenate(outs), state


@pytest.mark.parametrize("isa", ["twin", *_native.available_isas()])
@pytest.mark.parametrize("dim", [5, 77, 128])
def test_any_number_of_tokens_gives_what_the_recurrence_gives(dim: int, isa: str) -> None:
    rule = Scan(NumpyMath()) if isa == "twin" else NativeLayers(_native.Kernels(2, isa), {}, "f32").make(ScanPart())
    for tokens in (1, 2, 70):
        given = drawn(tokens, dim)
        for found, wanted in zip(given_by(rule, given), as_written(given), strict=True):
            assert np.abs(found - wanted).max() < 1e-4 * max(1.0, float(np.abs(wanted).max()))


def test_a_token_is_the_same_in_calls_of_any_length_and_on_any_number_of_threads() -> None:
    given = drawn(40, 24)
    whole = given_by(NativeLayers(_native.Kernels(1), {}, "f32").make(ScanPart()), given)
    for threads, sizes in ((1, (1,) * 40), (2, (3, 36, 1)), (5, ())):
        found = given_by(NativeLayers(_native.Kernels(threads), {}, "f32").make(ScanPart()), given, *sizes)
        assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True))


def test_shapes_that_do_not_fit_are_refused() -> None:
    kernels = _native.Kernels(1)
    q, k, _, _, state = drawn(2, 8)
    v, decays = np.zeros((HEADS, 2, 8), np.float32), np.zeros((HEADS, 2), np.float32)
    out = np.empty_like(v)
    for match, arguments in (
        ("queries and keys", (q, k[:1], v, decays, state, state, out)),
        ("values", (q, k, v[:, :1].copy(), decays, state, state, out)),
        ("decays", (q, k, v, decays[:1], state, state, out)),
        ("state", (q, k, v, decays, state[:1], state, out)),
        ("outputs", (q, k, v, decays, state, state, out[:1])),
        ("no tokens", (q[:0], k[:0], v, decays, state, state, out)),
    ):
        with pytest.raises(ValueError, match=match):
            _native.scan(kernels, *arguments)
