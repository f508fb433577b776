"""The models that are open: opened on demand, and closed for others or when nobody has asked for them in time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.memory.plan import within_ram
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored.fits_beside import fits_beside
from moeinf.engine.stored.longest_context import longest_context
from moeinf.errors import MoeinfError, StoreError
from moeinf.hardware import Machine, machine
from moeinf.pull.mtp_layer import ensure_draft
from moeinf.references.meaning import stored as stored_here
from moeinf.server.ask import Ask
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.names import DEFAULT_TAG
from moeinf.types import JsonMapping

log = logging.getLogger("moeinf.server")
_PAUSE_S = 0.1  # after a fault between two requests, so that one that comes again does not fill a processor
MOST_MODELS: Final = 3  # unasked, as with ollama
Open = Callable[[StoredModel, RuntimeConfig, Reporting, Machine | None], Model]
Fits = Callable[[StoredModel, RuntimeConfig, Machine, Machine], bool]
Longest = Callable[[StoredModel, RuntimeConfig, Machine], int]


def open_on(stored: StoredModel, config: RuntimeConfig, reporting: Reporting, on: Machine | None) -> Model:
    """on: the machine as other models leave it; None: as it is."""
    ensure_draft(stored, config)
    return Model(stored, config, reporting, on=on)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is open. expires: when it is closed unless asked again; None: never.

    told: what clients are told of it, read when it was opened: its files may have gone meanwhile.
    """

    stored: StoredModel
    model: Model
    config: RuntimeConfig
    expires: datetime | None
    told: JsonMapping

    @property
    def kept_bytes(self) -> int:
        """Of memory, by what it keeps of earlier prompts now."""
        with suppress(StoreError):  # it is being closed
            return self.model.generator.kept_bytes()
        return 0


@dataclass(frozen=True, slots=True)
class Room:
    """What a model can be opened in, once others are closed. on: as of open_on."""

    closing: Sequence[Loaded] = ()
    on: Machine | None = None


class OpenModels:
    """`loaded`, `find`, `config_for` and `of` may be called from any thread, the others from the worker's."""

    def __init__(
        self,
        library: Library,
        config: RuntimeConfig,
        keep_alive_s: float | None,
        open_model: Open,
        describe: Callable[[StoredModel], JsonMapping],
        most: int = MOST_MODELS,
        fits: Fits = fits_beside,
        longest: Longest = longest_context,
    ) -> None:
        """most: models that are open at a time. fits, longest: as fits_beside, longest_context. The others: see
        Worker."""
        self.library, self._config, self._keep_alive_s = library, config, keep_alive_s
        self._open, self._describe, self._most, self._fits = open_model, describe, most, fits
        self.loaded: tuple[Loaded, ...] = ()  # replaced whole, so that other threads may look; the last used behind
        self._alone: Machine | None = None  # as it was when no model was open
        self._longest, self._longest_of = longest, dict[tuple[str, str], int]()

    def find(self, name: str) -> StoredModel:
        """The stored model of that name; an open one also where its files have gone. Raises ModelNotFoundError."""
        try:
            found = stored_here(name, self.library)
        except MoeinfError:
            for each in self.loaded:
                if each.stored.name in (name, f"{name}:{DEFAULT_TAG}"):
                    return each.stored
            raise
        return next((each.stored for each in self.loaded if each.stored == found), found)

    def config_for(self, stored: StoredModel, ask: Ask, least_context: int = 0) -> RuntimeConfig:
        """How a model is opened for an ask; where the ask says nothing of that, as it is open.

        least_context: tokens that there must be room for, as far as the model is given such a context.
        """
        loaded, config = self.of(stored.id), _within_context(self._config.changed(**ask.config), stored)
        context = 0
        if loaded is not None and (not ask.config or config == loaded.config.changed(context=None)):
            config, context = loaded.config, loaded.model.plan.context if least_context else 0
        if least_context <= context:
            return config
        return config.changed(context=min(_rounded_up(least_context), self.longest_context(stored)))

    def longest_context(self, stored: StoredModel) -> int:
        """Tokens that a model is given room for at most, unless a request asks for others. Blocks, the first time.

        Raises StoreError.
        """
        loaded = self.of(stored.id)
        if loaded is not None and isinstance(loaded.model.plan, DevicePlan):
            return loaded.model.plan.context
        name = stored.id, stored.name  # another name may have options of its own
        if name not in self._longest_of:
            alone = self._alone if self.loaded and self._alone is not None else machine()
            self._longest_of[name] = self._longest(stored, self._config, alone)
        return self._longest_of[name]

    def of(self, identifier: str) -> Loaded | None:
        """The model with this id, where it is open."""
        return next((each for each in self.loaded if each.stored.id == identifier), None)

    def room_for(
        self, stored: StoredModel, ask: Ask, busy: Callable[[Loaded], bool], least_context: int = 0
    ) -> Room | None:
        """Where a model can be opened for an ask: beside the others, or in the place of those that were used longest
        ago. None where that takes the end of answers: of the models that are busy.
        """
        config = self.config_for(stored, ask, least_context)
        closing = [each for each in self.loaded if each.stored.id == stored.id]  # it is open with other options
        if any(map(busy, closing)):
            return None
        idle = (each for each in self.loaded if each.stored.id != stored.id and not busy(each))
        while True:
            rest = [each for each in self.loaded if each not in closing]
            if not rest:
                return Room(closing)
            if len(rest) < self._most and (left := self._left(rest, config)) is not None:
                assert self._alone is not None
                if self._fits(stored, config, left, self._alone):
                    return Room(closing, left)
            if (next_one := next(idle, None)) is None:
                return None
            closing.append(next_one)

    def _left(self, beside: Sequence[Loaded], config: RuntimeConfig) -> Machine | None:
        """What models leave of the memory that there was before they were opened; None on a GPU, which has one.

        It counts what they may take, as they have not touched all of it.
        """
        if self._alone is None or any(isinstance(each.model.plan, DevicePlan) for each in beside):
            return None
        alone, taken = within_ram(self._alone, config), sum(each.model.planned_bytes for each in beside)
        left = min(machine().available_bytes, alone.available_bytes - taken)
        return replace(alone, available_bytes=max(0, left), limited_by=f"{alone.limited_by}, beside other models")

    def make(self, room: Room) -> None:
        """Closes what is in the way."""
        for each in room.closing:
            self.close(each.stored.id)
        if not self.loaded:
            self._alone = machine()

    def opened(
        self, stored: StoredModel, config: RuntimeConfig, room: Room, progress: Callable[[int, int], None]
    ) -> Loaded:
        """Opens a model where `make` has made room, from any thread. `take` puts it among the others."""
        log.info("loading %s", stored.name)
        told, asked = self._describe(stored), self._config.memory.context
        self.longest_context(stored)  # so that nobody waits for the disk later, who asks for it
        if asked is not None and config.memory.context == stored.manifest.info.context_length < asked:
            log.info("a context of %d is beyond the %s tokens of %s", asked, config.memory.context, stored.name)
        model = self._open(stored, config, Reporting(_notice, _notice, progress, progress, log.info), room.on)
        log.info("%s", model.describe())
        return Loaded(stored, model, config, None, told)

    def take(self, loaded: Loaded) -> None:
        self.loaded = (*self.loaded, loaded)

    def idle_s(self) -> float | None:
        """Seconds until a model is to be closed; None where there is none, or never."""
        ends = [each.expires for each in self.loaded if each.expires is not None]
        return max(0.0, (min(ends) - _now()).total_seconds()) if ends else None

    def count_down(self, identifier: str, ask: Ask) -> None:
        """Sets the time at which a model is closed, from now on, and puts it behind those that are closed for others
        before it."""
        if (used := self.of(identifier)) is not None:
            seconds = ask.keep_alive[0] if ask.keep_alive else self._keep_alive_s
            used = replace(used, expires=None if seconds is None else _later(seconds))
            self.loaded = (*(each for each in self.loaded if each.stored.id != identifier), used)

    def close_expired(self, busy: Callable[[Loaded], bool]) -> None:
        for each in self.loaded:
            if each.expires is not None and each.expires <= _now() and not busy(each):
                self.close(each.stored.id)

    def close(self, identifier: str) -> None:
        """Closes the model with this id, where it is open."""
        if (loaded := self.of(identifier)) is not None:
            self.loaded = tuple(each for each in self.loaded if each is not loaded)
            guarded(loaded.model.close)
            log.info("unloaded %s", loaded.stored.name)

    def close_all(self) -> None:
        for each in self.loaded:
            self.close(each.stored.id)


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
    return config.changed(context=most)


def _rounded_up(tokens: int) -> int:
    """To a power of two, so that a conversation that grows has its model opened anew a few times only."""
    return 1 << (tokens - 1).bit_length()


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
