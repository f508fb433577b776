"""What is native of streams and of turned heads equals its twin in numpy, for every number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.math import NativeFused, NumpyMath
from moeinf.models.layers.array_math import Spelled
from moeinf.types import Float32Array

TWIN = Spelled[np.ndarray](NumpyMath())
SIZES = [(1, 4, 4096), (3, 2, 1025), (70, 4, 40), (2, 64, 130), (5, 1, 7)]  # tokens, streams, hidden


def assert_close(found: Float32Array, wanted: Float32Array) -> None:
    """Some compilers fuse a product and a sum."""
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def numbers(seed: int, *shape: int) -> Float32Array:
    found: Float32Array = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("tokens", "count", "hidden"), SIZES)
def test_streams_are_weighed_as_in_numpy(tokens: int, count: int, hidden: int, threads: int) -> None:
    x, shares = numbers(1, tokens, count * hidden), numbers(2, tokens, count)
    found = NativeFused(_native.Kernels(threads)).weighed(x, shares)
    assert_close(found, TWIN.weighed(x, shares))
    assert found.shape == (tokens, hidden)


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("tokens", "count", "hidden"), SIZES)
def test_streams_are_mixed_as_in_numpy(tokens: int, count: int, hidden: int, threads: int, mixes: bool) -> None:
    x, added, after = numbers(1, tokens, count * hidden), numbers(2, tokens, hidden), numbers(3, tokens, count)
    mixing = numbers(4, tokens, count, count) / np.float32(count) if mixes else None
    wanted, found = x.copy(), x.copy()
    TWIN.mix(wanted, added, after, mixing)
    NativeFused(_native.Kernels(threads)).mix(found, added, after, mixing)
    assert_close(found, wanted)
    alone = x[-1:].copy()
    last = None if mixing is None else mixing[-1:]
    NativeFused(_native.Kernels(1)).mix(alone, added[-1:], after[-1:], last)
    assert np.array_equal(alone, found[-1:]), "a token gets the same beside others"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "width"), [(1, 4096), (3, 1025), (70, 40), (5, 1)])
def test_scaled_sums_are_those_of_numpy(rows: int, width: int, threads: int) -> None:
    x, added, scales = numbers(1, rows, width), numbers(2, rows, width), numbers(3, 3, width)
    wanted, found = x.copy(), x.copy()
    TWIN.add_scaled(wanted, added, *scales)
    NativeFused(_native.Kernels(threads)).add_scaled(found, added, *scales)
    assert_close(found, wanted)
    alone = x[-1:].copy()
    NativeFused(_native.Kernels(1)).add_scaled(alone, added[-1:], *scales)
    assert np.array_equal(alone, found[-1:]), "a token gets the same beside others"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("heads", "dim", "at_end", "pairs"), [(1, 8, False, 4), (64, 40, True, 8), (5, 12, True, 3), (17, 4, False, 0)]
)
def test_heads_are_turned_as_in_numpy(
    heads: int, dim: int, at_end: bool, pairs: int, interleaved: bool, threads: int
) -> None:
    x, cos, sin = numbers(1, 6, heads, dim), numbers(2, 6, pairs), numbers(3, 6, pairs)
    kept = x.copy()
    found = NativeFused(_native.Kernels(threads)).turned(x, cos, sin, at_end=at_end, interleaved=interleaved)
    assert_close(found, TWIN.turned(x, cos, sin, at_end=at_end, interleaved=interleaved))
    assert np.array_equal(x, kept), "what was given is as it was"


def test_heads_may_be_turned_where_they_are() -> None:
    x, cos, sin = numbers(1, 3, 20 * 8), numbers(2, 3, 4), numbers(3, 3, 4)
    kernels, out = _native.Kernels(2), np.empty_like(x)
    _native.turn_heads(kernels, x, cos, sin, 8, 0, True, out)
    _native.turn_heads(kernels, x, cos, sin, 8, 0, True, x)
    assert np.array_equal(out, x)


def test_sizes_that_do_not_fit_are_refused() -> None:
    kernels, x, out = _native.Kernels(1), numbers(1, 3, 8), np.empty((3, 4), np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        _native.weigh_streams(kernels, x, numbers(2, 3, 3), out)
    with pytest.raises(ValueError, match="tokens, hidden"):
        _native.weigh_streams(kernels, x, numbers(2, 3, 4), out)
    with pytest.raises(ValueError, match="more than 64"):
        _native.weigh_streams(kernels, numbers(1, 3, 65), numbers(2, 3, 65), out)
    with pytest.raises(ValueError, match="streams \\* streams"):
        _native.mix_streams(kernels, x, out, numbers(2, 3, 2), numbers(3, 3, 2))
    with pytest.raises(ValueError, match="the same size"):
        _native.add_scaled(kernels, x, out, *numbers(2, 3, 8))
    with pytest.raises(ValueError, match="for each column"):
        _native.add_scaled(kernels, x, x.copy(), *numbers(2, 3, 7))
    with pytest.raises(ValueError, match="beyond a head"):
        _native.turn_heads(kernels, x, numbers(2, 3, 2), numbers(3, 3, 2), 4, 1, False, x)
