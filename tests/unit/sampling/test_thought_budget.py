"""A thought ends where its tokens are spent, and never otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.sampling.params import SamplingParams
from moeinf.sampling.thought_budget import BudgetedSampler
from moeinf.text.forms.thought_marks import ThoughtMarks

OPEN, CLOSE, END = 1, 2, 3
TAGS = ThoughtMarks((OPEN,), CLOSE, (CLOSE,), opened=False)
OPENED = ThoughtMarks((OPEN,), CLOSE, (CLOSE,), opened=True)
CHANNEL, ANALYSIS, MESSAGE, START, FINAL = 4, 5, 6, 7, 8
HARMONY = ThoughtMarks((CHANNEL, ANALYSIS, MESSAGE), CLOSE, (CLOSE, START, CHANNEL, FINAL, MESSAGE), opened=False)


class Accepting:
    """A constraint that allows all, and remembers what it was told."""

    complete = False

    def __init__(self) -> None:
        self.told: list[int] = []

    def allowed(self) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        return np.arange(20)

    def accept(self, token: int) -> None:
        self.told.append(token)


def written(marks: ThoughtMarks, budget: int, wanted: Sequence[int], constraint: Accepting | None = None) -> list[int]:
    """The tokens of an answer whose model wants to write these, whatever it has written."""
    params = SamplingParams(temperature=0, thought_tokens=budget)
    sampler, made, meant = BudgetedSampler(params, marks, constraint=constraint), list[int](), list(wanted)
    while meant:
        logits = np.zeros(20, np.float32)
        logits[meant[0]] = 9.0
        token = sampler.sample(logits, made)
        made.append(token)
        if token == meant[0]:
            meant.pop(0)
        elif CLOSE in meant and token in marks.ends[:1]:
            meant = meant[meant.index(CLOSE) + 1 :] if token == CLOSE else meant
    return made


THOUGHT = [10, 11, 12, 13]


@pytest.mark.parametrize("budget", range(6))
def test_a_thought_has_no_more_tokens_than_it_may(budget: int) -> None:
    kept = THOUGHT[:budget]
    assert written(TAGS, budget, [OPEN, *THOUGHT, CLOSE, 14, END]) == [OPEN, *kept, CLOSE, 14, END]
    assert written(OPENED, budget, [*THOUGHT, CLOSE, 14, END]) == [*kept, CLOSE, 14, END]


@pytest.mark.parametrize("budget", range(6))
def test_of_gpt_oss_the_final_message_begins_behind_it(budget: int) -> None:
    opens = [CHANNEL, ANALYSIS, MESSAGE]
    whole = [*opens, *THOUGHT, CLOSE, START, CHANNEL, FINAL, MESSAGE, 14, END]
    made = written(HARMONY, budget, whole) if budget >= len(THOUGHT) else None
    if made is not None:
        assert made == whole
        return
    sampler = BudgetedSampler(SamplingParams(temperature=0, thought_tokens=budget), HARMONY)
    said = list[int]()
    for token in [*opens, *THOUGHT[:budget], *[15] * len(HARMONY.ends), 14]:
        logits = np.zeros(20, np.float32)
        logits[token] = 9.0
        said.append(sampler.sample(logits, said))
    assert said == [*opens, *THOUGHT[:budget], *HARMONY.ends, 14]


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_an_answer_without_a_thought_stays_as_it_is(budget: int) -> None:
    answer = [14, 15, 16, 17, 18, 19, END]
    assert written(TAGS, budget, answer) == written(HARMONY, budget, answer) == answer
    commentary = [CHANNEL, FINAL, MESSAGE, *answer]
    assert written(HARMONY, budget, commentary) == commentary


def test_a_second_thought_has_what_the_first_has_left() -> None:
    wanted = [OPEN, 10, CLOSE, 14, OPEN, 11, 12, CLOSE, 15]
    assert written(TAGS, 9, wanted) == wanted
    assert written(TAGS, 2, wanted) == [OPEN, 10, CLOSE, 14, OPEN, 11, CLOSE, 15]


def test_a_form_of_the_answer_is_told_of_what_was_written_for_the_model() -> None:
    constraint = Accepting()
    made = written(TAGS, 1, [OPEN, *THOUGHT, CLOSE, 14, END], constraint)
    assert constraint.told == made == [OPEN, 10, CLOSE, 14, END]


@given(st.lists(st.sampled_from([OPEN, CLOSE, 10, 11, END]), max_size=30), st.integers(0, 8), st.booleans())
def test_no_answer_thinks_longer_and_none_loses_what_is_no_thought(
    wanted: list[int], budget: int, opened: bool
) -> None:
    sampler = BudgetedSampler(SamplingParams(temperature=0, thought_tokens=budget), OPENED if opened else TAGS)
    made = list[int]()
    for token in wanted:
        logits = np.zeros(20, np.float32)
        logits[token] = 9.0
        made.append(sampler.sample(logits, made))
    thinking, thought = opened, 0
    for token, meant in zip(made, wanted, strict=True):
        assert token in (meant, CLOSE) and (token == meant or thinking)
        if thinking and token == CLOSE:
            thinking = False
        elif thinking:
            thought += 1
        elif token == OPEN:
            thinking = True
    assert thought <= budget
    assert all(first != OPEN or second == CLOSE for first, second in pairwise(made)) or budget > 0
