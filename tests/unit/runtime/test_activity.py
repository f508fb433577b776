"""What a model notes for those who watch it."""

from __future__ import annotations

import numpy as np

from moeinf.runtime.activity import Activity
from moeinf.types import MoeShape


def test_the_use_of_experts_is_noted_pass_by_pass() -> None:
    activity = Activity(MoeShape(2, 4, 2))
    activity.begin("prefill")
    activity.observe(0, np.array([[0, 1], [1, 3]]))
    activity.observe(1, np.array([[2, 3], [2, 3]]))
    before = activity.last_use()
    assert before.tolist() == [[1, 1, 0, 1], [0, 0, 1, 1]]
    activity.begin("decode")
    activity.observe(0, np.array([[1, 2]]))
    activity.observe(1, np.array([[3, 0]]))
    assert (activity.last_use() != before).tolist() == [[False, True, True, False], [True, False, False, True]]
    assert before.tolist() == [[1, 1, 0, 1], [0, 0, 1, 1]], "what was given out changes no more"


def test_only_what_is_decoded_counts_as_a_token() -> None:
    activity = Activity(MoeShape(2, 4, 1))
    for phase, passes in (("encode", 1), ("prefill", 2), ("decode", 5), ("prefill", 1), ("decode", 2)):
        activity.begin(phase)  # type: ignore[arg-type]
        for _ in range(passes):
            for layer in range(2):
                activity.observe(layer, np.array([[0]]))
    assert activity.decoded_tokens == 7
