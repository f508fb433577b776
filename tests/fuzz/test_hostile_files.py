"""A short run of the fuzzer of hostile files; `make fuzz` makes a long one."""

from __future__ import annotations

from tests.support.fuzzing import a_few


def test_mutated_files_end_in_success_or_one_line_and_spare_the_store() -> None:
    said = a_few("hostile_files", cases=40)
    assert "pull refused" in said and "pull sound" in said, "neither all files nor none are hostile"
