"""What a model notes for those who watch it."""

from __future__ import annotations

import numpy as np

from moeinf.runtime.activity import Activity
from moeinf.types import MoeShape


def test_the_use_of_experts_is_noted_pass_by_pass() -> None:
    activity = Activity(MoeShape(2, 4, 2))
    activity.observe(0, np.array([[0, 1], [1, 3]]))
    activity.observe(1, np.array([[2, 3], [2, 3]]))
    before = activity.last_use()
    assert before.tolist() == [[1, 1, 0, 1], [0, 0, 1, 1]]
    activity.observe(0, np.array([[1, 2]]))
    activity.observe(1, np.array([[3, 0]]))
    assert (activity.last_use() != before).tolist() == [[False, True, True, False], [True, False, False, True]]
    assert before.tolist() == [[1, 1, 0, 1], [0, 0, 1, 1]], "what was given out changes no more"
