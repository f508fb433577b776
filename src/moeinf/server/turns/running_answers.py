"""The answers that are being made: side by side, as many of each open model as it makes at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, TypeVar

from moeinf.engine.completion import Completion
from moeinf.engine.model import Model
from moeinf.server.ask import Ended, Failed
from moeinf.server.turns.answering import Asking, answer

J = TypeVar("J", bound=Asking)


@dataclass(slots=True, eq=False)
class _Running(Generic[J]):
    """wanted_by: who waits for its place. paused: whether it has left its place, and waits for one."""

    job: J
    model: Model
    load_s: float
    pieces: Generator[None, None, Completion] = field(init=False)
    wanted_by: J | None = None
    paused: bool = False

    def gives_way(self) -> bool:
        """See Hooks."""
        self.paused |= self.wanted_by is not None
        return self.paused


class RunningAnswers(Generic[J]):
    """Used by the worker's thread; others may look at `jobs` and `of`.

    Models take turns by the time that their steps take, so that the tokens of one do not wait for long prompts of
    another more than half of the time.
    """

    def __init__(
        self,
        on_end: Callable[[J, Ended | Failed], None],
        stopping: Callable[[], bool],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """on_end: told how each answer ends. stopping: whether all are to end within a token. clock: seconds."""
        self._on_end, self._stopping, self._clock = on_end, stopping, clock
        self._running: tuple[_Running[J], ...] = ()  # replaced whole, so that other threads may look
        self._spent_s: dict[Model, float] = {}  # on steps of each model that makes answers

    @property
    def jobs(self) -> list[J]:
        """The oldest first."""
        return [each.job for each in self._running]

    @property
    def paused(self) -> list[J]:
        """Those of the jobs that have left their places to others."""
        return [each.job for each in self._running if each.paused]

    def of(self, model: Model) -> list[J]:
        """The jobs that a model answers, the oldest first."""
        return [each.job for each in self._running if each.model is model]

    def others_than(self, model: Model) -> bool:
        """Whether another model makes answers."""
        return any(each.model is not model for each in self._running)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the place of an answer."""
        return any(each.wanted_by is not None for each in self._running)

    def has_place(self, model: Model, job: J) -> bool:
        """Whether a model can answer a job beside its others. One place of several is kept from background jobs, and
        those that are paused come before others."""
        mine = [each for each in self._running if each.model is model]
        if job.asker.background and any(each.paused for each in mine):
            return False
        return _has_place(model, job, mine)

    def make_place(self, model: Model, job: J) -> None:
        """Lets the background job that began last leave its place to another one, where there is one."""
        mine = [each for each in reversed(self._running) if each.model is model and each.job.asker.background]
        if job.asker.background or any(each.wanted_by is job for each in mine):
            return
        free = (each for each in mine if each.wanted_by is None and not each.paused)
        if (last := next(free, None)) is not None:
            last.wanted_by = job

    def withdraw(self, job: J) -> None:
        """Nobody has to make place for a job any more."""
        for each in self._running:
            if each.wanted_by is job:
                each.wanted_by = None

    def begin(self, job: J, model: Model, load_s: float) -> None:
        """load_s: seconds that the job waited for the model."""
        self.withdraw(job)
        running = _Running(job, model, load_s)
        running.pieces = answer(model, job, self._stopping, running.gives_way)
        self._running += (running,)
        self._spent_s.setdefault(model, min(self._spent_s.values(), default=0.0))

    def go_on(self) -> None:
        """Takes every answer as far as it comes, and then a step of the model that has had the least time."""
        self._end_pauses()
        for each in self._running:
            event = _advanced(each)
            if event is not None:
                self._running = tuple(other for other in self._running if other is not each)
                self._on_end(each.job, event)
        models = {each.model for each in self._running}
        self._spent_s = {model: spent for model, spent in self._spent_s.items() if model in models}
        if self._spent_s:
            model, began = min(self._spent_s, key=self._spent_s.__getitem__), self._clock()
            try:
                model.generator.step()
            finally:
                self._spent_s[model] += self._clock() - began

    def _end_pauses(self) -> None:
        """Of those that have a place again, the one that began first before others."""
        for each in self._running:
            if each.wanted_by is not None and each.wanted_by.cancelled:
                self.withdraw(each.wanted_by)
            if each.paused and each.wanted_by is None:
                mine = [other for other in self._running if other.model is each.model and other is not each]
                each.paused = not _has_place(each.model, each.job, mine)

    def give_up(self, error: Exception) -> None:
        """Ends all answers with an error."""
        running, self._running = self._running, ()
        for each in running:
            self._on_end(each.job, Failed(error))


def _has_place(model: Model, job: J, running: Sequence[_Running[J]]) -> bool:
    """Whether a model has one beside those that it answers."""
    jobs = [each.job for each in running if not each.paused]
    most = model.parallel - (model.parallel > 1)
    if job.asker.background and sum(each.asker.background for each in jobs) >= most:
        return False
    return len(jobs) < model.parallel


def _advanced(running: _Running[J]) -> Ended | Failed | None:
    """How an answer has ended; None where it waits for a step."""
    try:
        next(running.pieces)
    except StopIteration as ended:
        return Ended(ended.value, running.load_s)
    except BaseException as error:  # the client is told, whatever it was
        return Failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
    return None
