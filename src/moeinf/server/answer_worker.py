"""The thread that owns the model: one request after the other, models opened on demand and closed when idle."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import MoeinfError
from moeinf.server.answering import answer
from moeinf.server.ask import Ask, Ended, Failed, Loading
from moeinf.server.fair_queue import FairQueue
from moeinf.server.http_errors import BusyError, StoppingError
from moeinf.server.job import Job
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import DEFAULT_TAG
from moeinf.types import JsonMapping

log = logging.getLogger("moeinf.server")
_PAUSE_S = 0.1  # after a fault between two requests, so that one that comes again does not fill a processor
Open = Callable[[StoredModel, RuntimeConfig, Reporting], Model]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model that is open. expires: when it is closed unless asked again; None: never.

    told: what clients are told of it, read when it was opened: its files may have gone meanwhile.
    """

    stored: StoredModel
    model: Model
    config: RuntimeConfig
    expires: datetime | None
    told: JsonMapping


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
        self.library, self._config, self._keep_alive_s = library, config, keep_alive_s
        self._open, self._on_end, self._describe = open_model, on_end, describe
        self._queue: FairQueue[Job | Unload] = FairQueue(max_queue)
        self._loaded: Loaded | None = None  # replaced whole, so that other threads may look
        self._current: Job | None = None
        self._stopping = threading.Event()
        self._why_not, self._ended = "the server is stopping; ask again later", False
        self._at_once = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def loaded(self) -> Loaded | None:
        return self._loaded

    def find(self, name: str) -> StoredModel:
        """The stored model of that name; the open one also where its files have gone. Raises ModelNotFoundError."""
        opened = self._loaded.stored if self._loaded is not None else None
        try:
            found = self.library.find(name)
        except MoeinfError:
            if opened is None or opened.name not in (name, f"{name}:{DEFAULT_TAG}"):
                raise
            return opened
        return opened if opened is not None and opened == found else found

    def config_for(self, stored: StoredModel, ask: Ask) -> RuntimeConfig:
        """How a model is opened for an ask; where the ask says nothing of that, as it is open."""
        loaded = self._loaded
        if loaded is not None and loaded.stored.id == stored.id and not ask.config:
            return loaded.config
        return _within_context(replace(self._config, **ask.config), stored)

    @property
    def current(self) -> Job | None:
        """The job that is being answered."""
        return self._current

    @property
    def waiting(self) -> int:
        """How many jobs wait for their turn."""
        return len(self._queue)

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
        loaded = self._loaded
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
            while not self._stopping.is_set():
                _guarded(self._take_turn)
        finally:
            if not self._stopping.is_set():
                self._why_not = "the server's thread that runs models has ended; restart the server"
                self._stopping.set()
            self._ended = True
            self._refuse_waiting()
            _guarded(self._close)

    def _refuse_waiting(self) -> None:
        for left in self._queue.remove(lambda each: True):
            if isinstance(left, Unload):
                left.done.set_result(None)
            else:
                self._end(left, Failed(StoppingError(self._why_not)))

    def _take_turn(self) -> None:
        """Does what comes next, or closes a model for which nothing has come in time."""
        order = self._queue.get(self._idle_s())
        if isinstance(order, Unload):
            self._obey(order)
        elif order is not None:
            self._answer(order)
        elif self._idle_s() == 0.0:
            self._close()

    def _obey(self, order: Unload) -> None:
        try:
            if self._loaded is not None and self._loaded.stored.id == order.identifier:
                self._close()
        finally:
            order.done.set_result(None)

    def _idle_s(self) -> float | None:
        """Seconds until the model is to be closed; None where there is none, or never."""
        loaded = self._loaded
        if loaded is None or loaded.expires is None:
            return None
        return max(0.0, (loaded.expires - _now()).total_seconds())

    def _answer(self, job: Job) -> None:
        event: Ended | Failed
        self._current, started = job, time.perf_counter()
        try:
            if job.cancelled:
                event = Failed(StoppingError("cancelled"))
            elif job.ask.prompt is None and job.ask.keep_alive == (0.0,):
                self._close_named(job.ask.model)
                event = Ended(None)
            else:
                model = self._model_for(job)
                load_s = time.perf_counter() - started
                whole = None
                if job.ask.prompt is None:
                    model.warm_up()
                else:
                    whole = answer(model, job, self._at_once.is_set)
                event = Ended(whole, load_s)
        except BaseException as error:  # the client is told, whatever it was
            event = Failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        finally:
            self._current = None
        try:
            self._count_down(job)
        finally:
            self._end(job, event)

    def _end(self, job: Job, event: Ended | Failed) -> None:
        with suppress(Exception):  # counting must not cost the answer
            self._on_end(job, event)
        job.put(event)

    def _model_for(self, job: Job) -> Model:
        """The model that the job asks for, opened where it is not; another one is closed first."""
        stored = self.find(job.ask.model)
        config, loaded = self.config_for(stored, job.ask), self._loaded
        if loaded is not None and loaded.stored.id == stored.id and loaded.config == config:
            return loaded.model
        self._close()

        def progress(done: int, total: int) -> None:
            if self._at_once.is_set():
                raise StoppingError("the server is stopping; ask again later")
            job.put(Loading(done, total))

        log.info("loading %s", stored.name)
        told = self._describe(stored)
        model = self._open(stored, config, Reporting(_notice, _notice, progress, progress))
        log.info("%s", model.describe())
        self._loaded = Loaded(stored, model, config, None, told)
        return model

    def _count_down(self, job: Job) -> None:
        """Sets the time at which the model is closed, from now on."""
        if self._loaded is not None:
            seconds = job.ask.keep_alive[0] if job.ask.keep_alive else self._keep_alive_s
            expires = None if seconds is None else _later(seconds)
            self._loaded = replace(self._loaded, expires=expires)

    def _close_named(self, name: str) -> None:
        if self._loaded is not None and self.find(name).id == self._loaded.stored.id:
            self._close()

    def _close(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            _guarded(loaded.model.close)
            log.info("unloaded %s", loaded.stored.name)


class Unload:
    """An order to close the model with this id."""

    def __init__(self, identifier: str) -> None:
        self.identifier, self.done = identifier, Future[None]()
        self.done.set_running_or_notify_cancel()  # so that only the worker ends it, whoever stops waiting


def _guarded(step: Callable[[], None]) -> None:
    try:
        step()
    except BaseException as error:
        log.error("between two requests: %s", f"{type(error).__name__}: {error}", exc_info=error)
        time.sleep(_PAUSE_S)


def _within_context(config: RuntimeConfig, stored: StoredModel) -> RuntimeConfig:
    """The context that is asked for is an upper bound: as in ollama, a model that has less gets all of its own."""
    if config.context is None or config.context <= (most := stored.manifest.info.context_length):
        return config
    log.info("a context of %d is beyond the %d tokens of %s, which it gets", config.context, most, stored.name)
    return replace(config, context=most)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _later(seconds: float) -> datetime | None:
    """That many seconds from now; None, for ever, for more than a calendar holds."""
    try:
        return _now() + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _notice(line: str) -> None:
    log.warning("%s", line)
