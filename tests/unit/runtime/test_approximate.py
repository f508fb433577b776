"""Tokens that do without experts: those of answers alone, and look-ahead is told of the same."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.runtime.approximate import ApproximateExperts, Within
from moeinf.runtime.cache.table import ABSENT, RESIDENT
from moeinf.types import Float32Array, Routing, Spares


class Told:
    """Experts that note what they are routed to."""

    wants_expectations = True

    def __init__(self) -> None:
        self.run_with: list[Routing] = []
        self.expected: list[Routing] = []

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        self.run_with.append(routing)

    def expect(self, layer: int, guess: Routing) -> None:
        self.expected.append(guess)

    def norm_outputs(self, layer: int, scale: Float32Array, eps: float) -> None: ...


def routing() -> Routing:
    """Expert 1 is absent in layer 1 alone; 3 is the first spare that is resident."""
    spares = Spares(np.array([[2, 3]]), np.array([[0.2, 0.15]], np.float32), keeps_sum=False)
    return Routing(np.array([[0, 1]]), np.array([[0.75, 0.25]], np.float32), spares)


def experts(most_lost: float) -> tuple[ApproximateExperts, Told]:
    states, told = np.full((2, 4), RESIDENT, np.uint8), Told()
    states[1, 1:3] = ABSENT
    return ApproximateExperts(told, states, 1, Within(0.1, 0.05, most_lost)), told  # type: ignore[arg-type]


def run(made: ApproximateExperts, layer: int) -> None:
    nothing = np.zeros((1, 1), np.float32)
    made.run(layer, nothing, routing(), nothing)


def test_a_token_of_an_answer_uses_what_is_there() -> None:
    made, told = experts(0.3)
    made.begin_pass(decodes=True)
    run(made, 0)
    run(made, 1)
    assert [each.ids.tolist() for each in told.run_with] == [[[0, 1]], [[0, 3]]]
    assert np.allclose(told.run_with[1].weights, [[0.75, 0.15]])
    assert (made.instead, made.left_out) == (1, 0)


def test_look_ahead_expects_what_will_be_used_and_counts_nothing() -> None:
    made, told = experts(0.3)
    made.begin_pass(decodes=True)
    made.expect(1, routing())
    assert told.expected[0].ids.tolist() == [[0, 3]] and made.instead == 0


@pytest.mark.parametrize(("most_lost", "decodes"), [(0.3, False), (0.0, True)], ids=["a prompt", "no budget"])
def test_prompts_are_exact_and_so_is_everything_without_a_budget(most_lost: float, decodes: bool) -> None:
    made, told = experts(most_lost)
    made.begin_pass(decodes=decodes)
    run(made, 1)
    made.expect(1, routing())
    for each in (*told.run_with, *told.expected):
        assert np.array_equal(each.ids, routing().ids) and np.array_equal(each.weights, routing().weights)
    assert made.instead == made.left_out == 0


def test_figures_say_how_far_answers_may_be() -> None:
    assert str(Within(0.01, 0.00734, 0.3)) == "approx KL <= 0.01 (measured 0.0073)"
