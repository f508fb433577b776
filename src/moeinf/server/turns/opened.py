"""The one model that is open: opened on demand, and closed for another or when nobody has asked for it in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import MoeinfError
from moeinf.server.ask import Ask
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


class OpenModel:
    """`loaded`, `find`, `config_for` and `model_of` may be called from any thread, the others from the worker's."""

    def __init__(
        self,
        library: Library,
        config: RuntimeConfig,
        keep_alive_s: float | None,
        open_model: Open,
        describe: Callable[[StoredModel], JsonMapping],
    ) -> None:
        """See Worker."""
        self.library, self._config, self._keep_alive_s = library, config, keep_alive_s
        self._open, self._describe = open_model, describe
        self.loaded: Loaded | None = None  # replaced whole, so that other threads may look

    def find(self, name: str) -> StoredModel:
        """The stored model of that name; the open one also where its files have gone. Raises ModelNotFoundError."""
        opened = self.loaded.stored if self.loaded is not None else None
        try:
            found = self.library.find(name)
        except MoeinfError:
            if opened is None or opened.name not in (name, f"{name}:{DEFAULT_TAG}"):
                raise
            return opened
        return opened if opened is not None and opened == found else found

    def config_for(self, stored: StoredModel, ask: Ask) -> RuntimeConfig:
        """How a model is opened for an ask; where the ask says nothing of that, as it is open."""
        loaded = self.loaded
        if loaded is not None and loaded.stored.id == stored.id and not ask.config:
            return loaded.config
        return _within_context(self._config.changed(**ask.config), stored)

    def model_of(self, stored: StoredModel) -> Model | None:
        """The model where it is open."""
        loaded = self.loaded
        return loaded.model if loaded is not None and loaded.stored.id == stored.id else None

    def answers(self, ask: Ask) -> bool:
        """Whether the model that is open is the one that is asked for, or none is found that would take its place."""
        loaded = self.loaded
        if ask.prompt is None or loaded is None:
            return False
        try:
            stored = self.find(ask.model)
        except MoeinfError:
            return True
        return loaded.stored.id == stored.id and loaded.config == self.config_for(stored, ask)

    def opened_for(self, ask: Ask, progress: Callable[[int, int], None]) -> Model:
        """The model that is asked for, opened where it is not; another one is closed first."""
        stored = self.find(ask.model)
        config, loaded = self.config_for(stored, ask), self.loaded
        if loaded is not None and loaded.stored.id == stored.id and loaded.config == config:
            return loaded.model
        self.close()
        log.info("loading %s", stored.name)
        told = self._describe(stored)
        model = self._open(stored, config, Reporting(_notice, _notice, progress, progress))
        log.info("%s", model.describe())
        self.loaded = Loaded(stored, model, config, None, told)
        return model

    def idle_s(self) -> float | None:
        """Seconds until the model is to be closed; None where there is none, or never."""
        loaded = self.loaded
        if loaded is None or loaded.expires is None:
            return None
        return max(0.0, (loaded.expires - _now()).total_seconds())

    def count_down(self, ask: Ask) -> None:
        """Sets the time at which the model is closed, from now on."""
        if self.loaded is not None:
            seconds = ask.keep_alive[0] if ask.keep_alive else self._keep_alive_s
            expires = None if seconds is None else _later(seconds)
            self.loaded = replace(self.loaded, expires=expires)

    def close(self, identifier: str | None = None) -> None:
        """identifier: of the model that is to be closed, where it is the open one; None for whichever is open."""
        loaded = self.loaded
        if loaded is None or identifier not in (None, loaded.stored.id):
            return
        self.loaded = None
        guarded(loaded.model.close)
        log.info("unloaded %s", loaded.stored.name)


def guarded(step: Callable[[], None]) -> None:
    """Takes a step between two requests, and logs what it raises."""
    try:
        step()
    except BaseException as error:
        log.error("between two requests: %s", f"{type(error).__name__}: {error}", exc_info=error)
        time.sleep(_PAUSE_S)


def _within_context(config: RuntimeConfig, stored: StoredModel) -> RuntimeConfig:
    """The context that is asked for is an upper bound: as in ollama, a model that has less gets all of its own."""
    if config.memory.context is None or config.memory.context <= (most := stored.manifest.info.context_length):
        return config
    log.info("a context of %d is beyond the %d tokens of %s, which it gets", config.memory.context, most, stored.name)
    return config.changed(context=most)


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
