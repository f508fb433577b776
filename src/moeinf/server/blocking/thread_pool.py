"""Threads for what the event loop must not wait for: so much at once, and so much more that waits."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from moeinf.server.http_errors import BusyError

T = TypeVar("T")
MOST_WAITING: Final = 1024
WAIT_S: Final = 30.0


class ThreadPool:
    """Runs calls off one event loop. Its threads never keep a program from ending, whatever they wait for."""

    def __init__(
        self, what: str, num_threads: int, *, most_waiting: int = MOST_WAITING, wait_s: float | None = WAIT_S
    ) -> None:
        """what: it does, for the words of an error. wait_s: after which a caller is told that it takes too long."""
        self._what, self._num_threads, self._wait_s = what, num_threads, wait_s
        self._most = num_threads + most_waiting
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_started = self._num_unfinished = 0

    async def run(self, call: Callable[[], T]) -> T:
        """The result of call(), on a thread. Raises what it raises, and BusyError where there is no room, or no end.

        A call whose caller no longer waits is made all the same.
        """
        if self._num_unfinished >= self._most:
            raise BusyError(f"server busy: {self._what} takes too long; ask again later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(tell: Callable[[], None]) -> None:
            self._num_unfinished -= 1
            if not future.done():
                tell()

        def make() -> None:
            tell: Callable[[], None]
            try:
                tell = partial(future.set_result, call())
            except BaseException as error:  # the caller is told, whatever it was
                tell = partial(future.set_exception, error)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish, tell)

        self._start_another()
        self._num_unfinished += 1
        self._calls.put(make)
        try:
            return await asyncio.wait_for(future, self._wait_s)
        except asyncio.TimeoutError:
            if not future.cancelled():
                raise  # of the call itself
            raise BusyError(f"server busy: {self._what} takes too long; ask again later") from None

    def close(self) -> None:
        """Ends each thread after the call that it makes; does not wait for that."""
        for _ in range(self._num_started):
            self._calls.put(None)

    def _start_another(self) -> None:
        if self._num_started > self._num_unfinished or self._num_started == self._num_threads:
            return
        try:
            threading.Thread(target=self._run, name=f"pool: {self._what}", daemon=True).start()
            self._num_started += 1
        except RuntimeError:  # the system gives no more
            if not self._num_started:
                raise BusyError("server busy: the system gives it no thread; ask again later") from None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # with what it holds, while the thread waits


class Pools:
    """The pools of one server, apart so that what hangs in one does not stop the others.

    store: reads and changes the store, for which a disk may take for ever. texts: asks tokenizers, which may take long.
    compute: turns JSON of any size into requests, and answers into JSON; it waits for nothing.
    """

    def __init__(self) -> None:
        self.store = ThreadPool("reading the store", 8)
        self.texts = ThreadPool("the tokenizer", 2, most_waiting=64, wait_s=None)
        self.compute = ThreadPool("reading requests", 2)

    def close(self) -> None:
        for pool in (self.store, self.texts, self.compute):
            pool.close()
