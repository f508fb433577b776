"""One request between the event loop, where its client waits, and the thread that runs the models."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from moeinf.sampling.step_queue import Asker
from moeinf.server.ask import Ask, Ended, Event, Failed, Queued, Text
from moeinf.store.library import StoredModel

LOOK_S: Final = 1.0  # between two looks at the place of a request that waits


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks, and for whom as the client says, for fair turns; background: whether nobody waits at a screen.

    name: of the request, as the client says.
    """

    client: str = ""
    user: str = ""
    background: bool = False
    name: str = ""

    @property
    def asker(self) -> Asker:
        return Asker(f"{self.client} {self.user}", self.background)


class Job:
    """Carries events from the worker's thread to the loop on which it was made.

    What waits there is bounded by the answer, which is no longer than the model's context.
    """

    def __init__(self, ask: Ask, who: Who | None = None, stored: StoredModel | None = None) -> None:
        """stored: the model that is asked, where it is known already."""
        self.ask, self.who, self.stored = ask, who or Who(), stored
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._cancelled = threading.Event()
        self.last_event: Event | None = None  # for others to read, as what follows
        self.pieces = 0  # of text, that were told
        self.least_context = 0  # tokens that the model must have room for
        self.answer_room = 1  # of these, so many are of the answer, if it goes on so long
        self.came_s = time.monotonic()
        self.waited_s: float | None = None  # for its turn; None while it waits
        self.is_begun = False  # whether its model is at its answer
        self.place: Callable[[], Queued | None] = lambda: None  # where it waits, and how long still; from any thread

    @property
    def asker(self) -> Asker:
        return self.who.asker

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """The client has gone: the answer ends within a token, or never begins. From any thread."""
        self._cancelled.set()

    def begins(self) -> None:
        """Its turn has come."""
        self.waited_s = time.monotonic() - self.came_s

    def waits_again(self, least_context: int) -> None:
        """Its model had no room for it, and is to be opened with more."""
        self.least_context, self.waited_s, self.is_begun = least_context, None, False

    def put(self, event: Event) -> None:
        """Tells the client; from any thread. Nobody is told once the loop has ended."""
        self.last_event = event
        self.pieces += isinstance(event, Text)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self, timeout_s: float) -> Event | None:
        """The next event; None where none came for timeout_s seconds."""
        try:
            return await asyncio.wait_for(self._events.get(), timeout_s)
        except asyncio.TimeoutError:
            return None

    async def events(self, silence_s: float, told: Event | None = None) -> AsyncIterator[Event | None]:
        """Yields the events up to Ended or Failed, Queued now and then while it waits for its turn, and None whenever
        nothing came for silence_s seconds. told: what the client was told last."""
        silent_s = 0.0
        while True:
            waits = self.waited_s is None
            event = await self.next(min(LOOK_S, silence_s) if waits else silence_s)
            if event is None and waits:
                silent_s += LOOK_S
                place = self.place()
                if place is not None and (place != told or silent_s >= silence_s):
                    event = told = place
                elif silent_s < silence_s:
                    continue
            silent_s = 0.0
            yield event
            if isinstance(event, Ended | Failed):
                return
