"""Dense weights that are looked up or read whole, in every format that they may be stored in."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf._native import dequantise
from moeinf.models.layers.weights import Embedding, StoredTensor, vector
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
