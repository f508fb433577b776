"""Traces in steps of several rows: requests side by side, and drafts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import UsageError
from moeinf.traces.rows_of_steps import StepForm, arranged
from moeinf.traces.trace import Trace, check, passes_of
from moeinf.types import MoeShape

SHAPE = MoeShape(num_layers=1, num_experts=64, top_k=2)


def numbered(lengths: list[int]) -> Trace:
    """Requests of so many tokens, each of which is told by its experts: token t has t and 63."""
    tokens = sum(lengths)
    experts = np.stack([np.arange(tokens), np.full(tokens, 63)], axis=1)[:, None, :]
    return Trace("numbered", SHAPE, experts, np.cumsum([0, *lengths]))


def steps(trace: Trace) -> list[list[int]]:
    return [trace.experts[first:last, 0, 0].tolist() for _, first, last in passes_of(trace)]


def obvious_steps(lengths: list[int], places: int) -> list[list[int]]:
    """Each place asks for the next token of its list, or for the next list."""
    ends = np.cumsum([0, *lengths]).tolist()
    waiting = [list(range(*each)) for each in pairwise(ends)]
    running: list[list[int]] = [[] for _ in range(places)]
    found: list[list[int]] = []
    while True:
        for place in range(places):
            if not running[place] and waiting:
                running[place] = waiting.pop(0)
        step = [each.pop(0) for each in running if each]
        if not step:
            return found
        found.append(step)


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 8))
def test_each_step_has_a_row_of_each_request_that_has_a_place(lengths: list[int], places: int) -> None:
    trace, parallel = numbered(lengths), min(places, len(lengths))
    found = arranged(trace, StepForm(parallel))
    check(found.trace)
    assert steps(found.trace) == obvious_steps(lengths, parallel) and not found.rejected


def test_only_the_first_tokens_are_taken_of_all_requests_that_run() -> None:
    found = arranged(numbered([5, 5, 5]), StepForm(2), max_tokens=4)
    assert steps(found.trace) == [[0, 5], [1, 6]]


def test_a_prompt_goes_by_itself_behind_the_rows_of_the_others() -> None:
    found = arranged(numbered([4, 4, 3]), StepForm(2), prefill_tokens=2).trace
    assert steps(found) == [[0, 1], [2], [4, 5], [3, 6], [7], [8, 9], [10]]
    phases = [begins for begins, _, _ in passes_of(found)]
    assert phases == ["prefill", "decode", "prefill", "decode", None, "prefill", "decode"]
    alone = arranged(numbered([4, 3]), StepForm(), prefill_tokens=2).trace
    assert list(passes_of(alone)) == list(passes_of(numbered([4, 3]), 2))


def test_what_a_trace_has_of_its_tokens_goes_with_them() -> None:
    trace = numbered([3, 3])
    weights = np.arange(12, dtype=np.float32).reshape(6, 1, 2)
    trace = replace(trace, weights=weights, guesses=trace.experts, guess_weights=weights)
    found = arranged(trace, StepForm(2)).trace
    order = [0, 3, 1, 4, 2, 5]
    assert found.guesses is not None and found.guesses[:, 0, 0].tolist() == order
    assert found.weights is not None and (found.weights == weights[order]).all()
    assert found.guess_weights is not None and (found.guess_weights == weights[order]).all()


@settings(deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 9))
def test_a_step_has_a_draft_of_each_token_that_follows(lengths: list[int], draft: int, seed: int) -> None:
    trace = numbered(lengths)
    requests = [list(range(*each)) for each in pairwise(np.cumsum([0, *lengths]).tolist())]
    right, wrong = (arranged(trace, StepForm(1, draft, acceptance), seed=seed) for acceptance in (1.0, 0.0))
    size = 1 + draft
    assert steps(right.trace) == [each[at : at + size] for each in requests for at in range(0, len(each), size)]
    tokens = [(token, min(size, end - token)) for r in requests for end in [r[-1] + 1] for token in r]
    assert [(rows[0], len(rows)) for rows in steps(wrong.trace)] == tokens
    check(wrong.trace)
    assert right.rejected == 0 and wrong.rejected == wrong.trace.num_tokens - trace.num_tokens


def test_drafts_are_right_as_often_as_told() -> None:
    trace = replace(numbered([40] * 50), experts=np.tile(numbered([40]).experts, (50, 1, 1)))
    for draft, acceptance in ((1, 0.6), (3, 0.8)):
        found = arranged(trace, StepForm(1, draft, acceptance))
        steps_made = len(found.trace.passes) - 1  # type: ignore[arg-type]
        expected = sum(acceptance**i for i in range(draft + 1))
        assert trace.num_tokens / steps_made == pytest.approx(expected, rel=0.06)


def test_a_wrong_draft_has_the_routing_of_another_token_of_any_request_or_of_the_same() -> None:
    trace = numbered([10, 10])
    drawn = {
        wrong: arranged(trace, StepForm(1, 4, 0.0, wrong)).trace.experts[:, 0, 0].tolist() for wrong in ("any", "same")
    }
    first = slice(0, 4 * 5)  # of the first request
    assert max(drawn["same"][first]) < 10 <= max(drawn["any"][first])


def test_rows_that_visit_other_layers_are_a_pass_of_their_own() -> None:
    experts = np.full((4, 2, 1), 0)
    experts[2:, 1] = -1
    trace = Trace("uneven", MoeShape(2, 3, 1), experts, np.array([0, 2, 4]))
    found = arranged(trace, StepForm(2)).trace
    check(found)
    assert found.passes is not None and found.passes.tolist() == [0, 1, 2, 3, 4]


def test_a_step_needs_each_expert_of_its_rows_once() -> None:
    alike = replace(numbered([4, 4]), experts=np.tile(np.array([[[3, 5]]]), (8, 1, 1)))
    found = arranged(alike, StepForm(2))
    assert found.union == 1.0 and found.independent_union == pytest.approx((64 - 64 * (62 / 64) ** 2) / 2)
    read = arranged(alike, StepForm(2), prefill_tokens=2)
    assert read.union == pytest.approx((2 + 2 + 2) / 4), "of decode, and one request begins a step later"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"parallel": 0}, "--parallel is a number of requests from 1 on, not 0"),
        ({"draft": -1}, "--draft is a number of tokens from 0 on"),
        ({"acceptance": 1.5}, "--acceptance is a share from 0 to 1, not 1.5"),
        ({"parallel": 33, "draft": 1}, "a step of 66 rows is more than one computes; ask for 64 at most"),
    ],
)
def test_what_no_step_can_be_is_refused(form: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        StepForm(**form)  # type: ignore[arg-type]


def test_more_places_than_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="has 2 requests, and --parallel asks for 3 side by side: give 2 at most"):
        arranged(numbered([2, 2]), StepForm(3))
