"""Who uses a model: one request at a time, in one process, until it is closed or the program ends."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from moeinf.errors import StoreError, UsageError

EXIT_S: Final = 5.0  # that the end of the program waits for a model that computes
_PAUSE_S: Final = 0.002  # between two looks whether a step has ended
_NO_MORE: Final[Any] = object()
T = TypeVar("T")
Request = Generator[Any, None, None]


class Turns:
    """Lets one request use a model at a time.

    An answer has the model from its first piece to its end, but computes only while a piece is asked for. A call that
    comes between two pieces ends the answer where the same thread makes it, which reads no further meanwhile; that of
    another thread is refused. Nothing but `close` waits, so two threads never wait for each other.
    """

    def __init__(self, name: str) -> None:
        """name: of the model, for errors."""
        self._name, self._process = name, os.getpid()
        self._mutex = threading.RLock()  # of what follows; not held while something computes
        self._running: object | None = None  # what computes now
        self._thread = 0  # which computed last
        self._open: weakref.ref[Request] | None = None  # the answer that has the model
        self.ending = False  # whether the model is closed, or is to be once what computes has ended
        self._closed = self._exiting = False
        _all.add(self)

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that opened the model: it has none of its threads."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises what a request that began now would: UsageError, StoreError for a closed model."""
        self._check_open()
        read_elsewhere = self._opened() is not None and self._thread != threading.get_ident()
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
                    self._check_open()
                if item is _NO_MORE:
                    return
                yield item
        finally:
            self._end(request)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The model for a call that is no answer. Raises as `check`."""
        token = object()
        try:
            self._enter(token, None, False)
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
        self._close_answer()
        return True

    def _enter(self, token: object, request: Request | None, begun: bool) -> None:
        """Takes the model for a step. request: the answer that begins, or goes on."""
        with self._mutex:
            if begun:
                self._check_open()
                if self._opened() is not request:
                    raise UsageError(f"this answer of {self._name} was ended by a later request of the same thread")
            else:
                self.check()
            self._running, self._thread = token, threading.get_ident()
        if not begun:
            self._close_answer()
            self._open = None if request is None else weakref.ref(request)

    def _end(self, request: Request) -> None:
        """Ends an answer that nobody reads on. Its cleaning up is a step, too, and never that of a forked process."""
        if self.forked:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
            return
        with self._mutex:
            if self._running is not None or self._opened() is not request:
                return
            self._running, self._thread = request, threading.get_ident()
        try:
            self._close_answer()
        finally:
            self._running = None

    def _opened(self) -> Request | None:
        return None if self._open is None else self._open()

    def _close_answer(self) -> None:
        """Ends the answer that has the model; by whoever computes."""
        answer, self._open = self._opened(), None
        if answer is not None:
            answer.close()

    def _check_open(self) -> None:
        if self.forked:
            raise UsageError(
                f"{self._name} was opened by the process that this one was forked from; open it in this one, too"
            )
        if self._exiting and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # a daemon thread, which ends with the program
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
