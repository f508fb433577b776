"""A short run of the fuzzer of what ranks send each other; `make fuzz` makes a long one."""

from __future__ import annotations

from tests.support.fuzzing import a_few


def test_mutated_meetings_and_messages_are_served_or_end_in_one_line() -> None:
    said = a_few("hostile_peers", cases=25_000)
    for what in ("visitor", "caller", "said", "frame", "reply"):
        assert f"{what} refused" in said and f"{what} sound" in said, "neither all bytes nor none are hostile"
    assert "session refused" in said and "session ended" in said and "25 rank 0 served" in said
