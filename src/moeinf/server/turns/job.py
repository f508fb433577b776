"""One request between the event loop, where its client waits, and the thread that runs the model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

from moeinf.server.ask import Ask, Ended, Event, Failed


class Job:
    """Carries events from the worker's thread to the loop on which it was made.

    What waits there is bounded by the answer, which is no longer than the model's context.
    """

    def __init__(self, ask: Ask, client: str = "", user: str = "") -> None:
        """client, user: who asks, and for whom as the client says, for fair turns."""
        self.ask, self.client, self.user = ask, client, user
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._cancelled = threading.Event()
        self.last_event: Event | None = None  # for others to read

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """The client has gone: the answer ends within a token, or never begins. From any thread."""
        self._cancelled.set()

    def put(self, event: Event) -> None:
        """Tells the client; from any thread. Nobody is told once the loop has ended."""
        self.last_event = event
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self, timeout_s: float) -> Event | None:
        """The next event; None where none came for timeout_s seconds."""
        try:
            return await asyncio.wait_for(self._events.get(), timeout_s)
        except asyncio.TimeoutError:
            return None

    async def events(self, silence_s: float) -> AsyncIterator[Event | None]:
        """Yields the events up to Ended or Failed, and None whenever nothing came for silence_s seconds."""
        while True:
            event = await self.next(silence_s)
            yield event
            if isinstance(event, Ended | Failed):
                return
