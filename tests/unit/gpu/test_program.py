"""A decode step is recorded once and repeated: device work in stretches, host actions between them."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from moeinf.gpu.program import DecodeProgram
from tests.support.emulated_device import EmulatedDevice


class Step:
    """x -> 2 x + what the host adds between, with a count of how often its Python runs."""

    def __init__(self, program: DecodeProgram) -> None:
        self.program = program
        self.given = torch.zeros(3)
        self.added = torch.zeros(3)
        self.python_runs = self.host_runs = self.last_stretches = 0
        self.gives_up = False

    def __call__(self) -> Tensor:
        self.python_runs += 1
        doubled = self.given * 2
        self.program.outside(self.host)
        return doubled + self.added

    def before_last(self) -> None:
        self.last_stretches += 1

    def host(self) -> None:
        if self.gives_up:
            raise KeyboardInterrupt
        self.host_runs += 1
        self.added.fill_(float(self.given[0]) * 100)


@pytest.fixture
def step() -> Step:
    return Step(DecodeProgram(EmulatedDevice()))


def run(step: Step, value: float, owner: object = "cache") -> float:
    step.given.fill_(value)
    return float(step.program.run(step, owner, step.before_last)[0])


def test_every_run_gives_what_the_step_computes(step: Step) -> None:
    assert [run(step, value) for value in (1, 2, 3, 4, 5)] == [102, 204, 306, 408, 510]


def test_from_the_third_run_on_no_python_of_the_step_is_executed(step: Step) -> None:
    for value in range(6):
        run(step, value)
    assert step.python_runs == 2
    assert step.host_runs == 6


def test_only_a_repetition_that_comes_to_its_last_stretch_says_so(step: Step) -> None:
    for value in range(5):
        run(step, value)
    assert step.last_stretches == 3
    step.gives_up = True
    with pytest.raises(KeyboardInterrupt):
        run(step, 5)
    assert step.last_stretches == 3


def test_another_owner_starts_anew(step: Step) -> None:
    mine, yours = object(), object()
    for _ in range(3):
        run(step, 1, mine)
    assert run(step, 2, yours) == 204
    assert step.python_runs == 3


def test_an_error_while_recording_leaves_a_program_that_works(step: Step) -> None:
    run(step, 1)
    original, step.host = step.host, lambda: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        run(step, 2)
    step.host = original  # type: ignore[method-assign]
    assert [run(step, value) for value in (3, 4, 5)] == [306, 408, 510]


def test_nothing_is_collected_while_a_step_is_recorded(step: Step) -> None:
    """Finalisers may call the driver, which a capture refuses."""
    seen: list[bool] = []
    original, step.host = step.host, lambda: seen.append(gc.isenabled())  # type: ignore[method-assign]
    for value in range(3):
        run(step, value)
    assert seen == [True, False, True] and gc.isenabled()
    step.program.reset()
    run(step, 1)
    step.host = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        run(step, 2)
    assert gc.isenabled()
    step.host = original  # type: ignore[method-assign]


def test_a_stretch_that_asks_for_a_value_is_refused_as_by_a_real_capture(step: Step) -> None:
    program = step.program
    asking = lambda: step.given * float(step.given[0])  # noqa: E731
    program.run(asking, "owner", step.before_last)
    with pytest.raises(RuntimeError, match="asks for a value"):
        program.run(asking, "owner", step.before_last)
