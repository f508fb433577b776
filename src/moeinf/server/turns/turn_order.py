"""Whose turn it is: what of the queue can begin, beside what runs and in the models that are open."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.server.turns.fair_queue import FairQueue, May
from moeinf.server.turns.job import Job
from moeinf.server.turns.opened import Loaded, OpenModels
from moeinf.server.turns.pace import Pace
from moeinf.server.turns.running_answers import RunningAnswers

LOOK_S: Final = 0.25  # between two looks at the queue while answers are made and nothing is known to have changed


class Unload:
    """An order to close the model with this id."""

    def __init__(self, identifier: str) -> None:
        self.identifier, self.done = identifier, Future[None]()
        self.done.set_running_or_notify_cancel()  # so that only the worker ends it, whoever stops waiting


class Places:
    """`waiting`, `waits_s` and `changed` may be called from any thread, the others from the worker's."""

    def __init__(
        self,
        queue: FairQueue[Job | Unload],
        opened: OpenModels,
        running: RunningAnswers[Job],
        opening: Callable[[], bool],
    ) -> None:
        """opening: whether a model is being opened: one at a time is."""
        self._queue, self._opened, self._running, self._opening = queue, opened, running, opening
        self._paces: dict[str, Pace] = {}  # by the model's id
        self._changed, self._looked_s = True, 0.0  # whether something may have its turn that had not at the last look

    def changed(self) -> None:
        """Something has come, ended, or been opened."""
        self._changed = True

    def next(self) -> Job | Unload | None:
        """Takes what has its turn; where no answer is made, waits for it until a model is to be closed."""
        if not self._running.jobs:
            return self._queue.get(self._opened.idle_s(), self.may)
        if not self._changed and time.monotonic() < self._looked_s + LOOK_S:
            return None
        self._changed, self._looked_s = False, time.monotonic()
        order = self._queue.get(0.0, self.may)
        self._changed |= order is not None or self._running.wanted  # another one may follow it
        return order

    def pressed(self, model: Model) -> bool:
        """Whether others wait for the step of a model: another model, or a chat that can begin, or that waits for the
        place of an answer."""
        if self._running.others_than(model) or self._running.wanted:
            return True
        if not self._changed:
            return False
        self._changed = False
        first = self._queue.first(self.may)
        self._changed |= first is not None
        return self._running.wanted or (isinstance(first, Job) and not first.who.background)

    def may(self, order: Job | Unload) -> May:
        """A job waits for a place in its model while others go on. One that needs a model closed which is busy, or the
        order to close it, lets nobody behind it begin, so that this comes to an end."""
        if isinstance(order, Unload):
            loaded = self._opened.of(order.identifier)
            return May.BLOCK if loaded is not None and self.busy(loaded) else May.GO
        if order.cancelled:
            return May.GO
        try:
            return self._may_begin(order)
        except Exception:  # its client is told once it begins, whatever it is; others must not wait for it
            return May.GO

    def _may_begin(self, job: Job) -> May:
        ask, opened = job.ask, self._opened
        if job.stored is None:
            job.stored = opened.find(ask.model)
        loaded = opened.of(job.stored.id)
        if ask.only_closes:
            return May.BLOCK if loaded is not None and self.busy(loaded) else May.GO
        if loaded is not None and loaded.config == opened.config_for(job.stored, ask, job.least_context):
            if ask.prompt is None or self._running.has_place(loaded.model, job):
                return May.GO
            self._running.make_place(loaded.model, job)
            return May.WAIT
        if self._opening():
            return May.WAIT
        return May.GO if opened.room_for(job.stored, ask, self.busy, job.least_context) is not None else May.BLOCK

    def busy(self, loaded: Loaded) -> bool:
        """Whether a model makes answers."""
        return bool(self._running.of(loaded.model))

    def waiting(self) -> list[Job]:
        """The jobs that wait for their turn, the next one first."""
        return [each for each in self._queue.in_order() if isinstance(each, Job) and not each.cancelled]

    def learn(self, job: Job, stats: GenerationStats) -> None:
        """The answer to a job has ended."""
        if job.stored is not None:
            self._paces.setdefault(job.stored.id, Pace()).learn(stats)

    def waits_s(self, jobs: Sequence[Job]) -> list[float | None]:
        """How long each of these waits still, which come one after the other; None: not known."""
        found: dict[Job, float | None] = dict.fromkeys(jobs)
        for loaded in self._opened.loaded:
            of_model = [job for job in jobs if job.stored is not None and job.stored.id == loaded.stored.id]
            pace = self._paces.get(loaded.stored.id)
            if of_model and pace is not None:
                running = self._running.of(loaded.model)
                found |= zip(of_model, pace.waits_s(running, loaded.model.parallel, len(of_model)), strict=True)
        return list(found.values())
