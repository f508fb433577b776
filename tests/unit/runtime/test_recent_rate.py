"""A link's rate follows the link: what was measured long ago is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.runtime.recent_rate import HALF_S, RecentRate


def test_before_anything_came_there_is_no_rate() -> None:
    rate = RecentRate()
    assert rate.per_second(0, 0.0) is None and rate.per_second(10, 2.0) == 5 == rate.per_second(10, 2.0)


def test_a_link_that_slows_down_is_known_for_that_soon() -> None:
    rate, num_bytes = RecentRate(), 0
    for second in range(1, 1001):
        num_bytes += 100 if second <= 900 else 10
        found = rate.per_second(num_bytes, second)
    assert found == pytest.approx(10, rel=0.01), "a mean of all that ever came says 91"


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 3 * HALF_S)), min_size=1))
def test_the_rate_is_one_that_was_seen(steps: list[tuple[int, float]]) -> None:
    rate, num_bytes, seconds, rates, waiting = RecentRate(), 0, 0.0, list[float](), 0
    for more, longer in steps:
        before, num_bytes, seconds, waiting = seconds, num_bytes + more, seconds + longer, waiting + more
        found = rate.per_second(num_bytes, seconds)
        if seconds > before:
            rates, waiting = [*rates, waiting / (seconds - before)], 0
            assert found is not None and min(rates) * (1 - 1e-9) <= found <= max(rates) * (1 + 1e-9)
