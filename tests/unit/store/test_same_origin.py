"""Which sources may be states of one another, so that one may take the place of the other under a name."""

from __future__ import annotations

import pytest

from moeinf.store.manifest import ModelSource


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ModelSource("hub", "Org/Repo", "a"), ModelSource("hub", "org/repo", "b"), True),
        (ModelSource("hub", "org/repo"), ModelSource("hub", "org/other"), False),
        (ModelSource("hub", "o/r", file="x-Q4_K_M.gguf"), ModelSource("hub", "o/r", file="x-Q8_0.gguf"), False),
        (ModelSource("hub", "o/r", file="x-Q4_K_M.gguf"), ModelSource("hub", "o/r", file="X-q4_k_m.GGUF"), True),
        (
            ModelSource("hub", "o/r", file="x-Q4.gguf"),
            ModelSource("hub", "o/r", file="Q4/x-Q4-00001-of-00002.gguf"),
            True,
        ),
        (ModelSource("hub", "o/r", file="Q4_K_M"), ModelSource("hub", "o/r", file="x-Q4_K_M.gguf"), True),
        (ModelSource("hub", "o/r", file="Q8_0"), ModelSource("hub", "o/r", file="x-Q4_K_M.gguf"), False),
        (ModelSource("hub", "o/r"), ModelSource("hub", "o/r", file="x-Q4_K_M.gguf"), True),
        (ModelSource("folder", "/a"), ModelSource("folder", "/A"), False),
        (ModelSource("folder", "/a"), ModelSource("file", "/a"), False),
        (ModelSource("embedded", "demo"), ModelSource("embedded", "demo"), True),
        (ModelSource("embedded", "demo"), ModelSource("embedded", "demo:chat"), False),
    ],
)
def test_a_later_state_has_the_origin_of_the_first(one: ModelSource, other: ModelSource, same: bool) -> None:
    assert one.same_origin(other) == other.same_origin(one) == same
