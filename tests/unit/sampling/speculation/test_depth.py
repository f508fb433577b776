"""How many guesses a step tries: what they are worth, and what they may cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from moeinf.sampling.speculation.depth import LEAST_LOSS, Measured, Speculation, StepCosts
from moeinf.sampling.speculation.drafts import DraftCounts, Guess
from moeinf.sampling.step_queue import StepFacts


class Always:
    """Guesses some tokens every time, which takes a while."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self._clock, self._seconds, self.kind = clock, seconds, "dear" if seconds else None

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        self._clock.now += self._seconds * most
        return Guess([1] * most, self.kind or "")

    def close(self) -> None:
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    right: Callable[[int], float],
    cost: Callable[[int], float],
    *,
    tokens: int = 1000,
    answers: int = 1,
    guess_s: float = 0.0,
    hiccups: float = 0.0,
    measured: Measured | None = None,
) -> tuple[float, DraftCounts]:
    """The time that an answer takes, in steps without guesses; right: how often a guess is right at that token."""
    clock, counts, rng = Clock(), DraftCounts(), np.random.default_rng(3)
    speculation = Speculation([Always(clock, guess_s)], measured or Measured(), counts, clock=clock)
    clock.now, made = 5.0, 0
    while made < tokens:
        guess = speculation.draft([1], tokens - made - 1)
        found = 0
        while found < len(guess.ids) and rng.random() < right(made + found):
            found += 1
        slow = 4 if rng.random() < hiccups else 1
        step = StepFacts(cost(1 + len(guess.ids)) * rng.uniform(0.9, 1.1) * slow, answers)
        clock.now += step.seconds
        if guess.ids:
            speculation.tried(guess, found, step)
        else:
            speculation.single(step)
        made += 1 + found
    return clock.now - 5.0, counts


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6])
def test_what_costs_as_much_as_it_gives_loses_next_to_nothing(chance: float) -> None:
    seconds, counts = run(lambda at: chance, lambda rows: float(rows))
    assert 0 < counts.drafted < 60
    assert seconds < 1000 * (1 + LEAST_LOSS) * 1.005


def test_what_is_right_and_cheap_is_tried_as_deep_as_it_goes() -> None:
    seconds, counts = run(lambda at: 0.95, lambda rows: 1 + 0.2 * (rows - 1))
    assert seconds < 450 and counts.accepted > 700
    deep, _ = run(lambda at: 0.95, lambda rows: 1 + 0.2 * (rows - 1), guess_s=0.5)
    assert seconds < deep < 1000  # as deep guesses are dear


@pytest.mark.parametrize("chance", [0.0, 0.95])
def test_a_machine_that_does_something_else_now_and_then(chance: float) -> None:
    """Of ten steps two take four times as long: what is tried is what a quiet machine tries."""
    seconds, counts = run(lambda at: chance, lambda rows: 1 + 0.3 * (rows - 1), hiccups=0.2, tokens=500)
    assert seconds < 500 * 1.6 * (1.05 if chance == 0 else 0.75)
    assert (counts.accepted > 250) == (chance > 0)


def test_a_text_that_changes_is_followed() -> None:
    """Nothing is right in the first half, nearly all in the second."""
    seconds, _ = run(lambda at: 0.9 if at > 1000 else 0.0, lambda rows: 1 + 0.3 * (rows - 1), tokens=2000)
    assert seconds < 1000 * 1.02 + 700
    seconds, _ = run(lambda at: 0.0 if at > 1000 else 0.9, lambda rows: 1 + 0.3 * (rows - 1), tokens=2000)
    assert seconds < 1000 * 1.02 + 700


def test_beside_others_it_has_to_pay_for_their_time() -> None:
    """Alone a row more costs half a step and gives .8 of a token; beside seven answers that wait meanwhile it costs a
    tenth of a step that gives eight."""
    alone, _ = run(lambda at: 0.8, lambda rows: 1 + 0.5 * (rows - 1))
    assert alone < 950
    _, counts = run(lambda at: 0.2, lambda rows: 1 + 0.1 * (rows - 1), answers=8)
    assert counts.drafted < 150
    _, counts = run(lambda at: 0.9, lambda rows: 1 + 0.01 * (rows - 1), answers=8)
    assert counts.drafted > 500


def test_an_answer_begins_with_what_others_have_measured() -> None:
    measured = Measured()
    run(lambda at: 0.9, lambda rows: 1 + 0.2 * (rows - 1), measured=measured)
    seconds, counts = run(lambda at: 0.9, lambda rows: 1 + 0.2 * (rows - 1), tokens=30, measured=measured)
    assert seconds < 20 and counts.accepted > 10


def test_costs_between_those_that_were_measured() -> None:
    costs = StepCosts()
    assert costs.of(1) is None and costs.of(3) is None
    costs.note(1, 1.0)
    assert costs.of(2) == pytest.approx(1.6)
    costs.note(5, 3.0)
    assert costs.of(3) == pytest.approx(2.0) and costs.of(7) == pytest.approx(4.0)
    costs.note(1, 100.0)  # one step in which something else was done
    assert costs.of(1) == pytest.approx(2.0)
    for _ in range(50):
        costs.note(1, 1.0)
    assert costs.of(1) == pytest.approx(1.0, abs=0.1)
