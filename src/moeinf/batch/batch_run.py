"""Answers the requests of a batch side by side, in an order in which each finds what others have computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from moeinf.engine.model import Model
from moeinf.errors import MoeinfError, NotFiniteError, of_the_machine
from moeinf.sampling.step_queue import SOMEBODY, Asker
from moeinf.server.ask import Ask, Call, Ended, Event, Failed, Text
from moeinf.server.http import Answer
from moeinf.server.http_errors import fault_of
from moeinf.server.question import Writer
from moeinf.server.turns.running_answers import RunningAnswers


@dataclass(slots=True, eq=False)
class BatchRow:
    """A request of a batch, which is answered: see answering.Asking."""

    id: str
    custom_id: str
    ask: Ask
    writer: Writer
    answer: Answer = field(default_factory=Answer)
    pieces: int = 0  # of the answer so far: about as many as tokens
    cancelled: bool = False
    asker: Asker = SOMEBODY
    answer_room: int = 1

    @property
    def beginning(self) -> bytes:
        """What begins alike in prompts that begin alike."""
        return msgspec.json.encode([self.ask.raw, self.ask.tools.offered, self.ask.prompt])

    def put(self, event: Event) -> None:
        self.pieces += isinstance(event, Text | Call)
        if not isinstance(event, Failed):
            self.answer.take(event)


def answer_rows(
    model: Model,
    rows: Sequence[BatchRow],
    on_end: Callable[[BatchRow, Exception | None], None],
    on_step: Callable[[Sequence[BatchRow]], None],
    stopping: Callable[[], bool],
) -> None:
    """Answers all rows, or those that have ended when stopping() says so.

    on_end: told of each row, with its whole answer or with what is wrong with this request alone. on_step: told what
    runs, before each step. Raises what is wrong with the machine, so that no request can be answered.
    """

    def end(row: BatchRow, event: Ended | Failed) -> None:
        if isinstance(event, Ended):
            row.put(event)
            on_end(row, None)
        elif not stopping():
            on_end(row, own_fault(event.error))

    steps = model.generator.steps  # nobody waits for a first token: prompts are read in the largest pieces
    steps.cuts, steps.together = False, model.plan.prefill_chunk
    waiting = deque(sorted(rows, key=lambda row: row.beginning))
    running: RunningAnswers[BatchRow] = RunningAnswers(end, stopping)
    while (waiting or running.jobs) and not stopping():
        while waiting and len(running.jobs) < model.parallel:
            running.begin(waiting.popleft(), model, 0.0)
        on_step(running.jobs)
        running.go_on()


def own_fault(error: Exception) -> Exception:
    """The error where it is that of one request; else it is raised, as the same request may be answered later."""
    machine = of_the_machine(error)
    if machine is not None:
        raise machine
    if isinstance(error, OSError):
        raise error
    if isinstance(error, MoeinfError) and not isinstance(error, NotFiniteError) and fault_of(error).status >= 500:
        raise error
    return error
