"""The thread that owns the model: it begins requests as there is a place, and takes their answers on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.server.ask import Ended, Failed, Loading
from moeinf.server.http_errors import BusyError, StoppingError
from moeinf.server.turns.fair_queue import FairQueue
from moeinf.server.turns.job import Job
from moeinf.server.turns.opened import Open, OpenModel, guarded
from moeinf.server.turns.running_answers import RunningAnswers
from moeinf.store.library import Library, StoredModel
from moeinf.types import JsonMapping


class Worker:
    """Answers jobs on a thread of its own. Every method but those with an underscore may be called from any thread."""

    def __init__(
        self,
        library: Library,
        config: RuntimeConfig,
        *,
        keep_alive_s: float | None,
        max_queue: int,
        open_model: Open = Model,
        on_end: Callable[[Job, Ended | Failed], None] = lambda job, event: None,
        describe: Callable[[StoredModel], JsonMapping] = lambda stored: {},
    ) -> None:
        """config: with which models are opened, unless a request asks otherwise. on_end: told of each job's end.

        describe: what is kept, as Loaded.told, of a model that is opened.
        """
        self.opened, self._on_end = OpenModel(library, config, keep_alive_s, open_model, describe), on_end
        self._queue: FairQueue[Job | Unload] = FairQueue(max_queue)
        self._loading: Job | None = None  # the job for which a model is opened
        self._held: Job | Unload | None = None  # what waits until the answers have ended that are being made
        self._stopping = threading.Event()
        self._why_not, self._ended = "the server is stopping; ask again later", False
        self._at_once = threading.Event()
        self._running: RunningAnswers[Job] = RunningAnswers(partial(self._end, answered=True), self._at_once.is_set)
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def current(self) -> Job | None:
        """The job for which a model is opened, or of those that are being answered the oldest."""
        jobs = self._running.jobs
        return self._loading or (jobs[0] if jobs else None)

    @property
    def waiting(self) -> int:
        """How many jobs wait for their turn."""
        return len(self._queue) + isinstance(self._held, Job)

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
        if not self._queue.put(job.client, job, job.user):
            raise BusyError(f"server busy: {len(self._queue)} requests are waiting, as many as may; ask again later")
        if self._ended:  # meanwhile
            self._refuse_waiting()

    async def unload(self, identifier: str) -> bool:
        """Closes the model with this id once its turn comes, and waits for that. Returns False where it is not open.

        Raises BusyError where too many wait.
        """
        loaded = self.opened.loaded
        if loaded is None or loaded.stored.id != identifier:
            return False
        order = Unload(identifier)
        if not self._queue.put("", order):
            raise BusyError("server busy: too many requests are waiting; ask again later")
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
        """Ends what runs within a token, refuses what waits, and closes the model. Blocks until all that is done.

        Returns False where it is not done within limit_s.
        """
        self.end_answer()
        self.take_no_more()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Outlives whatever a turn raises. However it ends, nobody waits for it afterwards."""
        try:
            while self._running.jobs or not self._stopping.is_set():
                guarded(self._take_turn)
        finally:
            if not self._stopping.is_set():
                self._why_not = "the server's thread that runs models has ended; restart the server"
                self._stopping.set()
            self._ended = True
            self._running.give_up(StoppingError(self._why_not))
            held, self._held = self._held, None
            self._refuse_waiting(held)
            guarded(self.opened.close)

    def _refuse_waiting(self, held: Job | Unload | None = None) -> None:
        """held: what the worker's thread has taken from the queue; from another thread, nothing."""
        for left in (*self._queue.remove(lambda each: True), *([] if held is None else [held])):
            if isinstance(left, Unload):
                left.done.set_result(None)
            else:
                self._end(left, Failed(StoppingError(self._why_not)))

    def _take_turn(self) -> None:
        """Does what comes next, or closes a model for which nothing has come in time; then takes the answers on."""
        answering, order, self._held = bool(self._running.jobs), self._held, None
        if self._stopping.is_set():
            self._refuse_waiting(order)
            order = None
        elif order is None and self._running.has_place:
            order = self._queue.get(0.0 if answering else self.opened.idle_s())
        beside = isinstance(order, Job) and (order.cancelled or self.opened.answers(order.ask))  # by the same model
        if answering and order is not None and not beside:
            self._held = order
        elif isinstance(order, Unload):
            try:
                self.opened.close(order.identifier)
            finally:
                order.done.set_result(None)
        elif order is not None:
            self._begin(order)
        elif not answering and self.opened.idle_s() == 0.0:
            self.opened.close()
        self._running.go_on()

    def _begin(self, job: Job) -> None:
        def tell(done: int, total: int) -> None:
            if self._at_once.is_set():
                raise StoppingError("the server is stopping; ask again later")
            job.put(Loading(done, total))

        event: Ended | Failed
        self._loading, started = job, time.perf_counter()
        try:
            if job.cancelled:
                event = Failed(StoppingError("cancelled"))
            elif job.ask.prompt is None and job.ask.keep_alive == (0.0,):
                if self.opened.loaded is not None:
                    self.opened.close(self.opened.find(job.ask.model).id)
                event = Ended(None)
            else:
                model = self.opened.opened_for(job.ask, tell)
                load_s = time.perf_counter() - started
                if job.ask.prompt is not None:
                    self._running.begin(job, model, load_s)
                    return
                model.warm_up()
                event = Ended(None, load_s)
        except BaseException as error:  # the client is told, whatever it was
            event = Failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        finally:
            self._loading = None
        self._end(job, event, answered=True)

    def _end(self, job: Job, event: Ended | Failed, *, answered: bool = False) -> None:
        """answered: whether the job had its turn, from which on the model stays open for some time."""
        try:
            if answered:
                self.opened.count_down(job.ask)
        finally:
            with suppress(Exception):  # counting must not cost the answer
                self._on_end(job, event)
            job.put(event)


class Unload:
    """An order to close the model with this id."""

    def __init__(self, identifier: str) -> None:
        self.identifier, self.done = identifier, Future[None]()
        self.done.set_running_or_notify_cancel()  # so that only the worker ends it, whoever stops waiting
