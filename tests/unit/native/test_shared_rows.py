"""Attention to rows that are keys and values at once equals numpy's, for each token as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf import _native
from moeinf.types import Float32Array

HEADS, SCALE = 12, 0.1


def twin(queries: Float32Array, rows: Float32Array, sinks: Float32Array) -> Float32Array:
    """queries [heads, head_dim] over rows [n, head_dim]."""
    scores = queries.astype(np.float64) @ rows.T * SCALE
    shares, sink = np.exp(scores), np.exp(sinks[:, None].astype(np.float64))
    mixed: Float32Array = (shares @ rows / (shares.sum(1, keepdims=True) + sink)).astype(np.float32)
    return mixed


@pytest.mark.parametrize("dim", [8, 40, 512])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_token_gets_what_its_rows_give(dim: int, threads: int) -> None:
    rng = np.random.default_rng(dim)
    window, others = (rng.standard_normal((rows, dim), np.float32) for rows in (700, 600))
    whole = np.concatenate([others, rng.standard_normal((600, 5), np.float32)], 1)  # rows that go on
    sinks, picked = rng.standard_normal(HEADS, np.float32), rng.permutation(600).astype(np.int64)
    seen = np.array(
        [[0, 1, -1, 0], [5, 128, -1, 0], [7, 128, -1, 600], [9, 128, 3, 40], [0, 700, 0, 600], [2, 0, 10, 1],
         [3, 0, -1, 300], [11, 128, 7, 0], [690, 10, 599, 1], [12, 300, 0, 512], [13, 2, -1, 2]], np.int64,
    )  # fmt: skip
    queries = rng.standard_normal((len(seen), HEADS * dim), np.float32)
    out = np.empty_like(queries)
    kernels = _native.Kernels(threads)
    _native.attend_shared_rows(kernels, queries, window, whole, seen, picked, SCALE, sinks, out)
    for t, (first, rows, at, behind) in enumerate(seen):
        numbers = picked[at : at + behind] if at >= 0 else np.arange(behind)
        wanted = twin(
            queries[t].reshape(HEADS, dim), np.concatenate([window[first : first + rows], others[numbers]]), sinks
        )
        np.testing.assert_allclose(out[t].reshape(HEADS, dim), wanted, rtol=2e-5, atol=2e-5)
        alone = np.empty((1, HEADS * dim), np.float32)
        one = _native.Kernels(1)
        _native.attend_shared_rows(one, queries[t : t + 1], window, whole, seen[t : t + 1], picked, SCALE, sinks, alone)
        assert np.array_equal(alone[0], out[t]), "neither the other tokens nor the threads change a bit"


@pytest.mark.parametrize(
    "seen", [[0, 0, -1, 0], [-1, 2, -1, 0], [699, 2, -1, 0], [0, 1, -1, 5], [0, 1, 2, 2], [0, 1, -1, -1]]
)
def test_rows_that_are_not_there_are_refused(seen: list[int]) -> None:
    window, others, out = np.zeros((700, 8), np.float32), np.zeros((4, 8), np.float32), np.zeros((1, 8), np.float32)
    numbers, sinks = np.array([1, 2, 3], np.int64), np.zeros(1, np.float32)
    with pytest.raises(ValueError, match="rows that are not there, or none"):
        _native.attend_shared_rows(
            _native.Kernels(1), out, window, others, np.array([seen], np.int64), numbers, 1.0, sinks, out.copy()
        )


def test_a_number_that_no_row_has_is_refused() -> None:
    window, out, sinks = np.zeros((2, 8), np.float32), np.zeros((1, 8), np.float32), np.zeros(1, np.float32)
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match="a row is picked that is not there"):
            _native.attend_shared_rows(
                _native.Kernels(1), out, window, window, np.array([[0, 1, 0, 1]], np.int64),
                np.array([wrong], np.int64), 1.0, sinks, out.copy(),
            )  # fmt: skip
