"""Weights on their way to a GPU: what no kernel reads there becomes q8_0, as ggml would round it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from moeinf._native import dequantise
from moeinf.engine.weights.device_form import _WEIGHTS_AT_ONCE, convert, for_device
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import DEVICE_FORMATS, FORMAT_BLOCKS, ByteArray, Float32Array, Format, device_format, format_bytes
from tests.support.blocks import QUANTISED, even_blocks, halves_of

CONVERTED: list[Format] = [format for format in QUANTISED if format not in DEVICE_FORMATS]


def weights_of(format: Format, data: ByteArray) -> Float32Array:
    weights, num_bytes = FORMAT_BLOCKS[format]
    out = np.empty((1, len(data) // num_bytes * weights), np.float32)
    dequantise(format, data, *out.shape, out)
    flat: Float32Array = out[0]
    return flat


def blocks_of(format: Format, num_weights: int) -> ByteArray:
    data: ByteArray = even_blocks(format, num_weights // FORMAT_BLOCKS[format][0], np.random.default_rng(5)).reshape(-1)
    return data


@pytest.mark.parametrize("format", CONVERTED)
@pytest.mark.parametrize("num_weights", [256, _WEIGHTS_AT_ONCE + 768])
def test_every_type_becomes_the_nearest_q8_0(format: Format, num_weights: int) -> None:
    data = blocks_of(format, num_weights)
    out = np.empty(format_bytes("q8_0", (num_weights,)), np.uint8)
    convert(format, data, "q8_0", out)
    exact, found = weights_of(format, data), weights_of("q8_0", out)
    largest = np.abs(exact).reshape(-1, 32).max(axis=1)
    moved = np.abs(found - exact).reshape(-1, 32).max(axis=1)
    of_scale = largest / 2048 + 127 * 2.0**-25  # 11 bits; of the smallest, which are subnormal, fewer
    assert np.all(moved <= largest * 0.5 / 127 + of_scale)
    assert np.sqrt(np.square(found - exact).mean() / np.square(exact).mean()) < 0.006
    by_ggml = weights_of("q8_0", gguf.quantize(exact, gguf.GGMLQuantizationType.Q8_0))
    assert np.abs(found - by_ggml).max() <= largest.max() * 1.01 / 127 and np.mean(found != by_ggml) < 0.01, "ties"


@pytest.mark.parametrize("format", DEVICE_FORMATS)
def test_what_kernels_read_stays_as_it_is(format: Format) -> None:
    assert device_format(format) == format
    data = np.random.default_rng(1).integers(0, 256, format_bytes(format, (512,)), np.uint8)
    out = np.zeros_like(data)
    convert(format, data, format, out)
    assert np.array_equal(out, data)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_does_not_become_one(bad: float) -> None:
    data = blocks_of("q6_k", 1024).reshape(4, -1)
    at = halves_of("q6_k")[0]
    data[2, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
    out = np.empty(format_bytes("q8_0", (1024,)), np.uint8)
    convert("q6_k", data.reshape(-1), "q8_0", out)
    assert not np.isfinite(weights_of("q8_0", out)[512:768]).any()


def test_dense_weights_are_converted_piece_by_piece() -> None:
    class InPieces(StoredTensor):
        def pieces(self):  # type: ignore[no-untyped-def]
            yield from (self.data[:420], self.data[420:])

    tensor = InPieces(blocks_of("q6_k", 4096), "q6_k", (16, 256))
    kept = StoredTensor(blocks_of("q4_k", 4096), "q4_k", (16, 256))
    found = for_device({"a": tensor, "b": kept}, {})
    assert found["b"] is kept
    whole = np.empty(format_bytes("q8_0", (4096,)), np.uint8)
    convert("q6_k", tensor.data, "q8_0", whole)
    made = found["a"]
    assert (made.format, made.shape, made.num_bytes) == ("q8_0", (16, 256), len(whole))
    assert np.array_equal(np.concatenate(list(made.pieces())), whole)
