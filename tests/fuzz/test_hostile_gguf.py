"""A short run of the fuzzer of hostile GGUF files; `make fuzz` makes a long one."""

from __future__ import annotations

from tests.support.fuzzing import a_few


def test_mutated_gguf_files_end_in_success_or_one_line() -> None:
    said = a_few("hostile_gguf", cases=250)
    for what in ("file refused", "file sound", "split refused", "split sound"):
        assert what in said, "neither all files nor none are hostile"
