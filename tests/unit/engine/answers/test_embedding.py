"""Vectors of the states of tokens, whichever passes these come in."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.engine.answers.embedding import Pool
from moeinf.engine.completion import Pooling

ROWS = np.array([[3, 0, 0], [0, 4, 0], [0, 0, 12], [1, 2, 2]], np.float32)


@pytest.mark.parametrize(("how", "wanted"), [("mean", ROWS.mean(0)), ("last", ROWS[-1])])
def test_chunks_change_nothing_and_a_text_may_begin_anew(how: Pooling, wanted: np.ndarray) -> None:
    for sizes in ([4], [1, 3], [2, 1, 1]):
        pool, at = Pool(how), 0
        pool(0, ROWS[::-1][:2])  # of a text that gave its memory up, and begins again
        for size in sizes:
            pool(at, ROWS[at : at + size])
            at += size
        assert pool.count == 4
        assert np.allclose(pool.vector(), wanted / np.linalg.norm(wanted)) and pool.vector().dtype == np.float32


def test_states_of_nothing_have_no_direction() -> None:
    pool = Pool("mean")
    pool(0, np.zeros((2, 3), np.float32))
    assert not pool.vector().any()
