"""Answers the requests of a batch side by side, in an order in which each finds what others have computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from moeinf.engine.model import Model
from moeinf.errors import MoeinfError, NotFiniteError, of_the_machine
from moeinf.sampling.step_queue import SOMEBODY, Asker
from moeinf.server.ask import Ask, Call, Ended, Event, Failed, Reading, Text
from moeinf.server.http import Answer
from moeinf.server.http_errors import fault_of
from moeinf.server.question import Writer
from moeinf.server.turns.running_answers import RunningAnswers

WORTH_BYTES: Final = 256  # of text that two prompts begin with alike: some 64 tokens, for which one waits for the other


@dataclass(slots=True, eq=False)
class BatchRow:
    """A request of a batch, which is answered: see answering.Asking."""

    id: str
    custom_id: str
    ask: Ask
    writer: Writer
    answer: Answer = field(default_factory=Answer)
    is_read: bool = False  # whether the model has read the prompt
    pieces: int = 0  # of the answer so far: about as many as tokens
    cancelled: bool = False
    asker: Asker = SOMEBODY
    beginning: bytes = b""  # what prompts have in common that begin alike

    def __post_init__(self) -> None:
        told = [self.ask.raw, self.ask.tools.offered, self.ask.prompt]
        self.beginning = msgspec.json.encode(told)

    def put(self, event: Event) -> None:
        self.pieces += isinstance(event, Text | Call)
        self.is_read = self.is_read or not isinstance(event, Reading) or event.done == event.total
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
            on_end(row, _own_fault(event.error))

    model.generator.steps.cuts = False  # nobody waits for a first token: prompts are read in the largest pieces
    waiting = deque(sorted(rows, key=lambda row: row.beginning))
    running: RunningAnswers[BatchRow] = RunningAnswers(end, stopping)
    while (waiting or running.jobs) and not stopping():
        while waiting and len(running.jobs) < model.parallel and _may_begin(waiting[0], running.jobs):
            running.begin(waiting.popleft(), model, 0.0)
        on_step(running.jobs)
        running.go_on()


def _own_fault(error: Exception) -> Exception:
    """The error where it is that of one request; else it is raised."""
    machine = of_the_machine(error)
    if machine is not None:
        raise machine
    if isinstance(error, OSError):
        raise error
    if isinstance(error, MoeinfError) and not isinstance(error, NotFiniteError) and fault_of(error).status >= 500:
        raise error
    return error


def _may_begin(row: BatchRow, running: Sequence[BatchRow]) -> bool:
    """Not while another one reads what both begin with, and nobody else has read it."""
    read = max((_alike(row, each) for each in running if each.is_read), default=0)
    being_read = max((_alike(row, each) for each in running if not each.is_read), default=0)
    return being_read < read + WORTH_BYTES


def _alike(one: BatchRow, other: BatchRow) -> int:
    """With how many bytes both begin."""
    low, high = 0, min(len(one.beginning), len(other.beginning))
    while low < high:
        middle = (low + high + 1) // 2
        if one.beginning[low:middle] == other.beginning[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
