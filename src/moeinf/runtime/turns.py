"""Who uses a model: few requests at a time, in one process, until it is closed or the program ends."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from moeinf.errors import StoreError, UsageError

EXIT_S: Final = 5.0  # that the end of the program waits for a model that computes
_PAUSE_S: Final = 0.002  # between two looks whether a step has ended
_NO_MORE: Final[Any] = object()
T = TypeVar("T")
Request = Generator[Any, None, None]


class Turns:
    """Lets one thread use a model at a time, for one answer or for several side by side.

    An answer has its place from its first piece to its end, but computes only while a piece is asked for. A call of the
    same thread that comes between two pieces ends the oldest answer where there is no place left; that of another
    thread is refused. Nothing but `close` waits, so two threads never wait for each other.
    """

    def __init__(self, name: str, places: int = 1) -> None:
        """name: of the model, for errors. places: for answers that are open at a time."""
        self._name, self._process, self._places = name, os.getpid(), places
        self.aside: Callable[[], int] = lambda: 0  # answers that wait meanwhile without one
        self._mutex = threading.RLock()  # of what follows; not held while something computes
        self._running: object | None = None  # what computes now
        self._thread = 0  # which computed last
        self._open: list[weakref.ref[Request]] = []  # the answers that have a place, the oldest first
        self.ending = False  # whether the model is closed, or is to be once what computes has ended
        self._closed = self._exiting = False
        _all.add(self)

    @property
    def places(self) -> int:
        """For answers that are open now."""
        return self._places + self.aside()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that opened the model: it has none of its threads."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises what a request that began now would: UsageError, StoreError for a closed model."""
        self._stop_at_exit()
        self._check()

    def _check(self) -> None:
        self._check_open()
        read_elsewhere = bool(self._opened()) and self._thread != threading.get_ident()
        if self._running is not None or read_elsewhere:
            raise UsageError(f"{self._name} is answering another request; wait until that has ended or is closed")

    def answer(self, request: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yields what a request does. Raises as `check`, and UsageError where another request has ended this one."""
        begun = False
        try:
            while True:
                try:
                    self._enter(request, request, begun)
                    begun = True
                    item = next(request, _NO_MORE)
                finally:
                    if self._running is request:
                        self._running = None  # not in a function, at whose beginning an interrupt may come
                if self.ending:
                    self._stop_at_exit()
                    self._check_open()
                if item is _NO_MORE:
                    return
                yield item
        finally:
            self._end(request)

    @contextmanager
    def alone(self, beside: int = 0) -> Iterator[None]:
        """The model for a call that is no answer, beside so many answers at most. Raises as `check`."""
        token = object()
        try:
            self._enter(token, None, False, beside)
            yield
        finally:
            if self._running is token:
                self._running = None

    def close(self, patience_s: float = math.inf) -> bool:
        """Ends what computes, within a layer, and the answer that is read; every later call is refused.

        Returns whether that was done within patience_s seconds. Raises UsageError where a hook of a request, or a
        handler of a signal that interrupts one, calls this.
        """
        with self._mutex:
            if not self._closed and self._running is not None and self._thread == threading.get_ident():
                raise UsageError(f"{self._name} cannot be closed by what its own answer calls; close it afterwards")
            self.ending = True
        give_up_s = time.monotonic() + patience_s
        while not self._closed_now():
            if time.monotonic() > give_up_s:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _closed_now(self) -> bool:
        """Closes it where nothing computes; whether it is closed."""
        with self._mutex:
            if self._closed or self._running is not None:
                return self._closed
            self._running, self._thread, self._closed = self, threading.get_ident(), True  # for good
        self._close_answers(0)
        return True

    def _enter(self, token: object, request: Request | None, begun: bool, beside: int | None = None) -> None:
        """Takes the model for a step. request: the answer that begins, or goes on. beside: how many answers may stay
        open; None: as many as leave a place."""
        self._stop_at_exit()  # without the mutex, which the end of the program takes
        with self._mutex:
            if begun:
                self._check_open()
                if request not in self._opened():
                    raise UsageError(f"this answer of {self._name} was ended by a later request of the same thread")
            else:
                self._check()
            self._running, self._thread = token, threading.get_ident()
        if not begun:
            self._close_answers(self.places - 1 if beside is None else beside)
            if request is not None:
                self._open.append(weakref.ref(request))

    def _end(self, request: Request) -> None:
        """Ends an answer that nobody reads on. Its cleaning up is a step, too, and never that of a forked process."""
        if self.forked:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
            return
        with self._mutex:
            if self._running is not None or request not in self._opened():
                return
            self._running, self._thread = request, threading.get_ident()
        try:
            self._open = [each for each in self._open if each() is not request]
            request.close()
        finally:
            self._running = None

    def _opened(self) -> list[Request]:
        return [answer for each in self._open if (answer := each()) is not None]

    def _close_answers(self, stay: int) -> None:
        """Ends the oldest answers, so that so many stay; by whoever computes."""
        answers = self._opened()
        ending = answers[: max(0, len(answers) - stay)]
        self._open = [each for each in self._open if each() in answers[len(ending) :]]
        for answer in ending:
            answer.close()

    def _stop_at_exit(self) -> None:
        """Where the program ends, a daemon thread, which ends with it, goes no further."""
        if self._exiting and not self.forked and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()

    def _check_open(self) -> None:
        if self.forked:
            raise UsageError(
                f"{self._name} was opened by the process that this one was forked from; open it in this one, too"
            )
        if self.ending:
            raise StoreError(f"model {self._name} is closed; load it again")


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Python ends daemon threads wherever they take its lock behind this: that must not be within native code."""
    for turns in list(_all):
        if not turns.forked:
            turns._exiting = True
            with suppress(UsageError):
                turns.close(EXIT_S)
