"""Dense weights that are looked up or read whole, in every format that they may be stored in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moeinf._native import Kernels, dequantise
from moeinf.models.cpu.weights import NativeWeights
from moeinf.models.layers.weights import Embedding, StoredTensor, as_bfloat16, narrowed, vector
from moeinf.types import FORMAT_BLOCKS, Float32Array, Format
from tests.support.blocks import even_blocks

ROWS = 20


def stored(format: Format) -> tuple[StoredTensor, Float32Array]:
    """A matrix of two blocks a row (of plain weights, 64), and its weights."""
    block = FORMAT_BLOCKS[format][0]
    cols = 2 * block if block > 1 else 64
    rng = np.random.default_rng(1)
    if block > 1:
        data = even_blocks(format, 2 * ROWS, rng).reshape(-1)
    else:
        data = rng.integers(0, 60, ROWS * cols * FORMAT_BLOCKS[format][1], np.uint8)
    weights = np.empty((ROWS, cols), np.float32)
    dequantise(format, data, ROWS, cols, weights)
    return StoredTensor(data, format, (ROWS, cols)), weights


@pytest.mark.parametrize("format", FORMAT_BLOCKS)
def test_rows_of_an_embedding_are_looked_up_in_any_order_and_format(format: Format) -> None:
    tensor, weights = stored(format)
    for ids in ([3], [19, 0, 19, 7]):
        assert np.array_equal(Embedding(tensor)(ids), weights[ids])


@pytest.mark.parametrize("format", FORMAT_BLOCKS)
def test_a_vector_is_read_whole_in_any_format(format: Format) -> None:
    tensor, weights = stored(format)
    assert np.array_equal(vector(StoredTensor(tensor.data, format, (weights.size,))), weights.reshape(-1))


def of_floats(weights: Float32Array) -> StoredTensor:
    return StoredTensor(weights.copy().reshape(-1).view(np.uint8), "f32", weights.shape)


def rounded_to_bf16(weights: Float32Array) -> Float32Array:
    found: Float32Array = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return found


def test_float32_that_was_bfloat16_is_held_in_half_the_bytes_and_means_the_same() -> None:
    rng, kernels = np.random.default_rng(2), Kernels(2)
    weights = rounded_to_bf16(rng.standard_normal((12, 70), np.float32))
    for tokens in (1, 30):
        x = rng.standard_normal((tokens, 70), np.float32)
        narrow = narrowed({"router": of_floats(weights)})
        expected = NativeWeights(kernels, {"router": of_floats(weights)}).linear("router")(x)
        assert narrow["router"].num_bytes == 2 * weights.size
        assert np.array_equal(NativeWeights(kernels, narrow).linear("router")(x), expected)
        assert np.array_equal(Embedding(narrow["router"])([3, 0]), weights[[3, 0]])
        assert np.array_equal(vector(narrow["router"]), weights.reshape(-1))


def test_float16_that_was_bfloat16_is_that_again_and_else_stays_as_it_is() -> None:
    weights = rounded_to_bf16(np.random.default_rng(2).standard_normal((12, 70), np.float32))
    weights[0, 0] = 2**-24 * 3  # which float16 has no exponent for
    halves = StoredTensor(weights.astype(np.float16).reshape(-1).view(np.uint8), "f16", weights.shape)
    found = as_bfloat16(halves)
    assert (found.format, found.num_bytes) == ("bf16", 2 * weights.size)
    assert np.array_equal(Embedding(found)(range(12)), weights)
    bias = replace(halves, shape=(weights.size,))
    weights[3, 5] = 1 + 2**-9
    exact = StoredTensor(weights.astype(np.float16).reshape(-1).view(np.uint8), "f16", weights.shape)
    for each in (bias, exact, of_floats(weights), found):
        assert as_bfloat16(each) is each


def test_what_cannot_become_narrow_stays_as_it_is() -> None:
    weights = rounded_to_bf16(np.random.default_rng(3).standard_normal((4, 8), np.float32))
    exact = weights.copy()
    exact[3, 7] = 1 + 2**-20
    shared, mapped = of_floats(weights), of_floats(weights)
    mapped.data.flags.writeable = False
    tensors = {
        "exact": of_floats(exact),
        "one": shared,
        "two": StoredTensor(shared.data, "f32", shared.shape),
        "mapped": mapped,
        "norm": of_floats(weights.reshape(-1)),
        "halves": StoredTensor(shared.data[:64].copy(), "bf16", (4, 8)),
    }
    before = {name: bytes(each.data) for name, each in tensors.items()}
    assert narrowed(tensors) == tensors
    assert {name: bytes(each.data) for name, each in tensors.items()} == before
