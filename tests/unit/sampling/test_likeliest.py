"""What a beam search goes on with is what a full sort of all continuations begins with."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.sampling.beam_search import likeliest


@pytest.mark.parametrize(("beams", "vocabulary", "count"), [(1, 50, 4), (4, 300, 8), (3, 5, 12), (2, 3, 9)])
def test_the_likeliest_continuations_are_those_of_a_full_sort(beams: int, vocabulary: int, count: int) -> None:
    rng = np.random.default_rng((beams, vocabulary))
    logits = 40 * rng.standard_normal((beams, vocabulary)).astype(np.float32)
    scores = -20 * rng.random(beams)
    exact = logits.astype(np.float64)
    totals = exact - np.log(np.exp(exact).sum(-1, keepdims=True)) + scores[:, None]
    order = np.argsort(-totals.ravel())[:count]
    found = likeliest(logits, scores, count)
    assert [(beam, token) for beam, token, _ in found] == [divmod(place, vocabulary) for place in order.tolist()]
    assert np.allclose([total for _, _, total in found], totals.ravel()[order], atol=1e-5)


def test_of_equals_the_lowest_comes_first() -> None:
    found = likeliest(np.array([[1, 0, 1], [1, 1, 0]], np.float32), np.zeros(2), 4)
    assert [(beam, token) for beam, token, _ in found] == [(0, 0), (0, 2), (1, 0), (1, 1)]
