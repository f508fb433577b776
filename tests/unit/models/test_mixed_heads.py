"""Heads that convolutions mix (compressed_heads.py): natively and spelled out, against the formula in its docstring."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.layers.recurrent.compressed_heads import CompressedConvolutions, MixedHeads, MixedHeadsPart
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array

_OWN = "qkv_proj.conv_qk_"


@dataclass(frozen=True)
class Sizes:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    by_channel: int
    by_head: int

    @property
    def heads(self) -> int:
        return self.num_heads + self.num_kv_heads


SIZES = [Sizes(8, 2, 128, 2, 2), Sizes(6, 2, 5, 3, 1), Sizes(1, 1, 67, 1, 4), Sizes(3, 1, 7, 4, 3)]


def numbers(seed: int, *shape: int) -> Float32Array:
    found: Float32Array = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return found


def rule(sizes: Sizes, kernels: _native.Kernels | None) -> Any:
    """A MixedHeadsOf; None: the one that is spelled out."""
    channels = sizes.heads * sizes.head_dim
    tensors = {
        f"{_OWN}depthwise.weight": numbers(1, channels, 1, sizes.by_channel),
        f"{_OWN}depthwise.bias": numbers(2, channels),
        f"{_OWN}grouped.bias": numbers(3, channels),
        "qk_norm.temp": numbers(4, sizes.num_kv_heads),
    }
    stored = {name: StoredTensor(each.reshape(-1).view(np.uint8), "f32", each.shape) for name, each in tensors.items()}
    layers = NativeLayers(kernels or _native.Kernels(1), stored, "f32")
    attention: Any = SimpleNamespace(
        num_heads=sizes.num_heads, num_kv_heads=sizes.num_kv_heads, head_dim=sizes.head_dim
    )
    part: Any = MixedHeadsPart(CompressedConvolutions(attention, sizes.by_channel, sizes.by_head), "")
    return layers.make(part) if kernels else MixedHeads(layers.weights, part)


def windows_as_written(sizes: Sizes, seen: Float32Array) -> Float32Array:
    channels = sizes.heads * sizes.head_dim
    taps, bias = numbers(1, channels, sizes.by_channel), numbers(2, channels)
    rows = len(seen) - sizes.by_channel + 1
    mixed = np.array([(seen[i : i + sizes.by_channel].T * taps).sum(1) + bias for i in range(rows)])
    tokens = rows - sizes.by_head + 1
    given = [[mixed[t : t + sizes.by_head, at].T.ravel() for t in range(tokens)] for at in parts(sizes)]
    found: Float32Array = np.array(given).reshape(sizes.heads * tokens, -1)
    return found


def parts(sizes: Sizes) -> list[slice]:
    return [slice(i * sizes.head_dim, (i + 1) * sizes.head_dim) for i in range(sizes.heads)]


def level_as_written(sizes: Sizes, products: Float32Array, q: Float32Array, k: Float32Array) -> Float32Array:
    """Queries and keys, side by side."""
    group, tokens, size = sizes.num_heads // sizes.num_kv_heads, len(q), sizes.head_dim
    bias, temperatures = numbers(3, sizes.heads, size), numbers(4, sizes.num_kv_heads)
    out: np.ndarray[Any, Any] = np.empty((tokens, sizes.heads, size))
    by_head = products.reshape(sizes.heads, tokens, size).astype(np.float64)
    for t in range(tokens):
        queries, keys = q[t].reshape(-1, size).astype(np.float64), k[t].reshape(-1, size).astype(np.float64)
        for head in range(sizes.num_heads):
            out[t, head] = by_head[head, t] + bias[head] + (queries[head] + keys[head // group]) / 2
        for key in range(sizes.num_kv_heads):
            mean = ((queries[key * group : (key + 1) * group] + keys[key]) / 2).mean(0)
            out[t, sizes.num_heads + key] = by_head[sizes.num_heads + key, t] + bias[sizes.num_heads + key] + mean
        out[t] *= size**0.5 / np.linalg.norm(out[t], axis=1, keepdims=True)
        out[t, sizes.num_heads :] *= temperatures[:, None]
    return out.reshape(tokens, -1).astype(np.float32)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("tokens", [1, 2, 70])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_heads_are_mixed_as_the_formula_has_it(sizes: Sizes, tokens: int, threads: int) -> None:
    mixed = rule(sizes, _native.Kernels(threads) if threads else None)
    seen = numbers(5, tokens + sizes.by_channel + sizes.by_head - 2, sizes.heads * sizes.head_dim)
    np.testing.assert_allclose(mixed.windows(seen), windows_as_written(sizes, seen), rtol=1e-5, atol=1e-5)
    products = numbers(6, sizes.heads * tokens, sizes.head_dim)
    q, k = (numbers(7, tokens, count * sizes.head_dim) for count in (sizes.num_heads, sizes.num_kv_heads))
    found = np.concatenate(mixed.level(products, q, k), 1)
    np.testing.assert_allclose(found, level_as_written(sizes, products, q, k), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_token_gets_the_same_beside_others_and_for_every_number_of_threads(sizes: Sizes) -> None:
    one, three = rule(sizes, _native.Kernels(1)), rule(sizes, _native.Kernels(3))
    before, tokens = sizes.by_channel + sizes.by_head - 2, 70
    seen = numbers(5, tokens + before, sizes.heads * sizes.head_dim)
    whole = three.windows(seen)
    assert np.array_equal(one.windows(seen), whole)
    by_head = whole.reshape(sizes.heads, tokens, -1)
    assert np.array_equal(one.windows(seen[40 : 41 + before]).reshape(sizes.heads, -1), by_head[:, 40])
    products = numbers(6, sizes.heads, tokens, sizes.head_dim)
    q, k = (numbers(7, tokens, count * sizes.head_dim) for count in (sizes.num_heads, sizes.num_kv_heads))
    both = three.level(products.reshape(-1, sizes.head_dim), q, k)
    alone = one.level(products[:, 40].copy(), q[40:41], k[40:41])
    assert all(np.array_equal(each[40:41], single) for each, single in zip(both, alone, strict=True))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_head_of_nothing_stays_one(threads: int) -> None:
    sizes = SIZES[1]
    mixed = rule(sizes, _native.Kernels(threads) if threads else None)
    bias = numbers(3, sizes.heads, sizes.head_dim)
    q, k = (np.zeros((1, count * sizes.head_dim), np.float32) for count in (sizes.num_heads, sizes.num_kv_heads))
    assert not np.concatenate(mixed.level(-bias, q, k), 1).any()


def test_sizes_that_do_not_fit_are_refused() -> None:
    kernels, out = _native.Kernels(1), np.empty((12, 8), np.float32)
    seen, taps, bias = numbers(1, 6, 12), numbers(2, 3, 12), numbers(3, 12)
    for given in (
        (seen[:, :8].copy(), taps, bias, 4, 2, out),
        (seen, taps, bias[:8], 4, 2, out),
        (seen, taps, bias, 5, 2, out),
        (seen, taps, bias, 4, 0, out),
        (seen[:3], taps, bias, 4, 2, out),
        (seen, taps, bias, 4, 3, out),
    ):
        with pytest.raises(ValueError, match=r"channels|tokens|token is left"):
            _native.window_heads(kernels, *given)
    products, q, k, lengths = numbers(4, 9, 4), numbers(5, 3, 8), numbers(6, 3, 4), numbers(7, 3)
    left = np.empty_like(q), np.empty_like(k)
    _native.level_heads(kernels, products, bias, q, k, lengths, *left)
    for wrong in (
        (products[:8], bias, q, k, lengths, *left),
        (products, bias[:8], q, k, lengths, *left),
        (products, bias, q[:2], k, lengths, *left),
        (products, bias, k, q, lengths, *left),
        (products, bias, q, k, lengths[:2], *left),
        (products, bias, q, k, lengths, left[1], left[0]),
    ):
        with pytest.raises(ValueError, match=r"share keys|other tokens|bias|results"):
            _native.level_heads(kernels, *wrong)
