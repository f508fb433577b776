"""The thread that owns the models: it begins requests as there is a place, and takes their answers on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.fits_beside import fits_beside
from moeinf.engine.stored.longest_context import longest_context
from moeinf.server.ask import Ended, Eta, Failed, Loading
from moeinf.server.http_errors import RETRY_AFTER_S, BusyError, StoppingError
from moeinf.server.turns.contexts import least_context, refusal, room_for_answer
from moeinf.server.turns.fair_queue import FairQueue
from moeinf.server.turns.freed_memory import FreedMemory
from moeinf.server.turns.job import Job
from moeinf.server.turns.model_opening import ModelOpening
from moeinf.server.turns.opened import MOST_MODELS, Fits, Loaded, Longest, Open, OpenModels, guarded, open_on
from moeinf.server.turns.overview import Overview
from moeinf.server.turns.pace import retry_after_s
from moeinf.server.turns.pulse import Pulse
from moeinf.server.turns.running_answers import RunningAnswers
from moeinf.server.turns.turn_order import Places, Unload
from moeinf.store.library import Library, StoredModel
from moeinf.types import JsonMapping


@dataclass(frozen=True, slots=True)
class Limits:
    """models: that are open at a time. queue: jobs that wait."""

    queue: int
    models: int = MOST_MODELS


class Worker:
    """Answers jobs on a thread of its own. Every method but those with an underscore may be called from any thread."""

    def __init__(
        self,
        library: Library,
        config: RuntimeConfig,
        *,
        keep_alive_s: float | None,
        limits: Limits,
        open_model: Open = open_on,
        fits: Fits = fits_beside,
        longest: Longest = longest_context,
        on_end: Callable[[Job, Ended | Failed], None] = lambda job, event: None,
        describe: Callable[[StoredModel], JsonMapping] = lambda stored: {},
    ) -> None:
        """config: with which models are opened, unless a request asks otherwise. on_end: told of each job's end.

        fits, longest: as fits_beside, longest_context. describe: what is kept, as Loaded.told, of a model that opens.
        """
        self.opened = OpenModels(library, config, keep_alive_s, open_model, describe, limits.models, fits, longest)
        self._on_end = on_end
        self._queue: FairQueue[Job | Unload] = FairQueue(limits.queue)
        self._stopping = threading.Event()
        self._why_not, self._ended = "the server is stopping; ask again later", False
        self._at_once = threading.Event()
        self._running: RunningAnswers[Job] = RunningAnswers(partial(self._end, answered=True), self._at_once.is_set)
        self._opening: ModelOpening | None = None
        self._freed = FreedMemory()
        self._places = Places(self._queue, self.opened, self._running, lambda: self._opening is not None)
        self.view = Overview(
            lambda: _served(self._running, self._opening),
            self._places.waiting,
            self._places.waits_s,
            lambda: self._running.paused,
        )
        self.pulse = Pulse(
            lambda: bool(self.view.running or self.view.waiting), lambda: _got(self.opened, self._opening)
        )
        self._thread = threading.Thread(target=self.pulse.of(self._run), name="model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread goes on that answers requests."""
        return not self._ended

    @property
    def stopping(self) -> bool:
        """Whether the server ends, and takes no more jobs."""
        return self._stopping.is_set()

    def submit(self, job: Job) -> None:
        """Raises BusyError where too many wait, StoppingError once the server ends, or its thread has ended."""
        if self._stopping.is_set():
            raise StoppingError(self._why_not)
        for gone in self._queue.remove(lambda each: isinstance(each, Job) and each.cancelled):
            assert isinstance(gone, Job)
            self._end(gone, Failed(StoppingError("cancelled")))
        job.place, who = partial(self.view.place, job), job.who
        if not self._queue.put(who.client, job, who.user, background=who.background):
            waiting = self._places.waiting()
            after_s = retry_after_s(self._places.waits_s(waiting), RETRY_AFTER_S)
            raise BusyError(
                f"server busy: {len(waiting)} requests are waiting, as many as may; ask again later", after_s
            )
        self._places.changed()
        if self._ended:  # meanwhile
            self._refuse_waiting()

    async def unload(self, identifier: str) -> bool:
        """Closes the model with this id once its answers have ended, and waits for that. Returns False where it is not
        open. Raises BusyError where too many wait.
        """
        if self.opened.of(identifier) is None:
            return False
        order = Unload(identifier)
        if not self._queue.put("", order):
            raise BusyError("server busy: too many requests are waiting; ask again later")
        self._places.changed()
        if self._ended:  # meanwhile
            self._refuse_waiting()
        await asyncio.wrap_future(order.done)
        return True

    def take_no_more(self) -> None:
        """From now on every submit is refused, and so is what waits; what runs is still answered."""
        self._stopping.set()
        self._refuse_waiting()
        self._queue.put("", Unload(""))  # wakes the thread

    def end_answer(self) -> None:
        """Ends what runs within a token."""
        self._at_once.set()

    def stop(self, limit_s: float | None = None) -> bool:
        """Ends what runs within a token, refuses what waits, and closes the models. Blocks until all that is done.

        Returns False where it is not done within limit_s.
        """
        self.end_answer()
        self.take_no_more()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Outlives whatever a turn raises. However it ends, nobody waits for it afterwards."""
        try:
            while self._running.jobs or self._opening is not None or not self._stopping.is_set():
                guarded(self._take_turn)
        finally:
            if not self._stopping.is_set():
                self._why_not = "the server's thread that runs models has ended; restart the server"
                self._stopping.set()
            self._ended = True
            self._running.give_up(StoppingError(self._why_not))
            opening, self._opening = self._opening, None
            if opening is not None:
                self._end(opening.job, Failed(StoppingError(self._why_not)))
                guarded(lambda: opening.result().model.close())
            self._refuse_waiting()
            guarded(self.opened.close_all)
            self.pulse.end()

    def _refuse_waiting(self) -> None:
        for left in self._queue.remove(lambda each: True):
            if isinstance(left, Unload):
                left.done.set_result(None)
            else:
                self._end(left, Failed(StoppingError(self._why_not)))

    def _take_turn(self) -> None:
        """Does what comes next, and closes models for which nothing has come in time; then takes the answers on."""
        if self._stopping.is_set():
            self._refuse_waiting()
        opening = self._opening
        if opening is not None and (opening.done or not self._running.jobs):
            self._opening = None
            self._go(opening.job, partial(self._answer_with, opening))
        elif not self._stopping.is_set():
            order = self._places.next()
            if isinstance(order, Unload):
                guarded(partial(self.opened.close, order.identifier))
                order.done.set_result(None)
            elif order is not None:
                order.begins()
                self._go(order, partial(self._begun, order))
        self.opened.close_expired(self._places.busy)
        self._running.go_on()

    def _go(self, job: Job, begin: Callable[[], Ended | Failed | None]) -> None:
        """begin: returns how the job has ended; None where that is still to come."""
        try:
            event = begin()
        except BaseException as error:  # the client is told, whatever it was
            event = Failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        if event is not None:
            self._end(job, event, answered=True)

    def _begun(self, job: Job) -> Ended | Failed | None:
        """Begins an answer, or to open its model."""

        def tell(done: int, total: int) -> None:
            if self._at_once.is_set():
                raise StoppingError("the server is stopping; ask again later")
            job.put(Loading(done, total, eta.left_s(done, total)))

        ask, opened, eta = job.ask, self.opened, Eta()
        if job.cancelled:
            return Failed(StoppingError("cancelled"))
        stored = job.stored = opened.find(ask.model)
        if ask.only_closes:
            opened.close(stored.id)
            return Ended(None)
        loaded = opened.of(stored.id)
        config = opened.config_for(stored, ask, job.least_context)
        if loaded is not None and loaded.config == config:
            return _answered(self._running, self.opened, job, loaded, 0.0)
        room = opened.room_for(stored, ask, self._places.busy, job.least_context)
        if room is None:  # the name stands for another model since it was looked up
            raise BusyError(f"{ask.model} is another model now; ask again later")
        opened.make(room)
        self._opening = ModelOpening(job, self.pulse.of(partial(opened.opened, stored, config, room, tell)))
        self._opening.start(beside=bool(self._running.jobs))
        return None

    def _answer_with(self, opening: ModelOpening) -> Ended | Failed | None:
        """Begins the answer of the model that was opened for it."""
        loaded = opening.result()
        self.opened.take(loaded)
        loaded.model.generator.steps.pressed = partial(self._places.pressed, loaded.model)
        return _answered(self._running, self.opened, opening.job, loaded, opening.load_s)

    def _end(self, job: Job, event: Ended | Failed, *, answered: bool = False) -> None:
        """answered: whether the job had its turn, from which on the model stays open for some time."""
        if answered and isinstance(event, Failed) and not (job.cancelled or self._stopping.is_set()):
            least, who = least_context(self.opened, job, event.error), job.who
            if least:
                job.waits_again(least)
                if self._queue.put(who.client, job, who.user, background=who.background):
                    self._places.changed()
                    return
            event = Failed(refusal(self.opened, job, event.error))
        try:
            self._places.changed()
            self._running.withdraw(job)
            if answered and job.stored is not None:
                self.opened.count_down(job.stored.id, job.ask)
        finally:
            with suppress(Exception):  # counting must not cost the answer
                made = event.completion if isinstance(event, Ended) else None
                if made is not None and not made.vectors and not job.cancelled:  # of which no answer's time follows
                    self._places.learn(job, made.stats)
                self._on_end(job, event)
            job.put(event)
            self._freed.answer_ended(idle=not self._running.jobs)


def _answered(
    running: RunningAnswers[Job], opened: OpenModels, job: Job, loaded: Loaded, load_s: float
) -> Ended | None:
    """Begins an answer; where the model was only to be loaded, that has ended."""
    if job.ask.prompt is not None:
        job.is_begun, job.answer_room = True, room_for_answer(opened, loaded, job.ask)
        running.begin(job, loaded.model, load_s)
        return None
    if not running.of(loaded.model):
        loaded.model.warm_up()
    return Ended(None, load_s)


def _got(opened: OpenModels, opening: ModelOpening | None) -> object:
    """What is another thing whenever the disk has given something."""
    with suppress(Exception):  # a model may be closed just now
        read = [each.model.runner.reader.bytes_read() for each in opened.loaded]
        return read, None if opening is None else opening.job.last_event
    return object()


def _served(running: RunningAnswers[Job], opening: ModelOpening | None) -> list[Job]:
    """What has had its turn, the oldest first."""
    return [*running.jobs, *([] if opening is None else [opening.job])]
