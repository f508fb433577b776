"""A short run of the requests that are given up; `make faults` makes a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults.given_up import given_up, sweep
from tests.support.faults.native import run_preloaded
from tests.support.faults.python import places
from tests.support.faults.subjects import SUBJECTS, take_pages_ahead

STEM = "models/layers/streams/"


@pytest.mark.parametrize("name", SUBJECTS)
def test_after_a_request_that_was_given_up_the_next_ones_are_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_pages_ahead(monkeypatch)
    counts, faults = sweep(SUBJECTS[name], tmp_path, seed=1, cases=16)
    assert not faults, "\n".join(faults)
    assert counts["KeyboardInterrupt"] + counts["MemoryError"] > 8


def test_a_request_that_native_code_has_no_memory_for_ends_in_an_error(tmp_path: Path) -> None:
    """In a process of its own, as one that gets no memory where it cannot say so is at its end."""
    asked = ["--at", "allocations", "--only", "native", "--cases", "32"]
    assert run_preloaded("tests.fuzz.requests_given_up", asked, tmp_path) == 0


@pytest.mark.parametrize("name", ["recurrent", "recurrent prefixes"])
def test_no_recurrent_state_sees_tokens_that_are_not_counted(name: str, tmp_path: Path) -> None:
    """At each place between the last layer of a pass and the note of its tokens, of prompts' chunks and of tokens."""
    asked = SUBJECTS[name].open(tmp_path)
    asked.model.generator.sequences.last.forget()
    with places(within=STEM) as counting:
        asked.ask(asked.prompts[0])
    assert counting.count >= 16
    for number in range(1, counting.count + 1):
        asked.model.generator.sequences.last.forget()
        assert given_up(asked, number, KeyboardInterrupt, within=STEM)[0] == "KeyboardInterrupt"
        asked.check(1)
    asked.close()
