"""The answers that are being made: side by side, as many as the open model makes at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from moeinf.engine.completion import Completion
from moeinf.engine.model import Model
from moeinf.server.ask import Ended, Failed
from moeinf.server.turns.answering import Asking, answer

J = TypeVar("J", bound=Asking)


@dataclass(frozen=True, slots=True, eq=False)
class _Running(Generic[J]):
    job: J
    pieces: Generator[None, None, Completion]
    load_s: float


class RunningAnswers(Generic[J]):
    """All of one model. Used by the worker's thread; others may look at `jobs`."""

    def __init__(self, on_end: Callable[[J, Ended | Failed], None], stopping: Callable[[], bool]) -> None:
        """on_end: told how each answer ends. stopping: whether all are to end within a token."""
        self._on_end, self._stopping = on_end, stopping
        self._model: Model | None = None
        self._running: tuple[_Running[J], ...] = ()  # replaced whole, so that other threads may look

    @property
    def jobs(self) -> list[J]:
        """The oldest first."""
        return [each.job for each in self._running]

    @property
    def has_place(self) -> bool:
        return self._model is None or len(self._running) < self._model.parallel

    def begin(self, job: J, model: Model, load_s: float) -> None:
        """load_s: seconds that the job waited for the model. The model is that of the others, if there are any."""
        self._model = model
        self._running += (_Running(job, answer(model, job, self._stopping), load_s),)

    def go_on(self) -> None:
        """Takes every answer as far as it comes, and then a step of all that wait for one."""
        for each in self._running:
            event = _advanced(each)
            if event is not None:
                self._running = tuple(other for other in self._running if other is not each)
                self._on_end(each.job, event)
        model = self._model
        if not self._running:
            self._model = None
        elif model is not None:
            model.generator.step()

    def give_up(self, error: Exception) -> None:
        """Ends all answers with an error."""
        running, self._running, self._model = self._running, (), None
        for each in running:
            self._on_end(each.job, Failed(error))


def _advanced(running: _Running[J]) -> Ended | Failed | None:
    """How an answer has ended; None where it waits for a step."""
    try:
        next(running.pieces)
    except StopIteration as ended:
        return Ended(ended.value, running.load_s)
    except BaseException as error:  # the client is told, whatever it was
        return Failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
    return None
