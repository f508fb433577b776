"""The server's own lines on stderr, which nobody need read: a terminal that is held, or a full pipe, stops nothing."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Final

MOST_WAITING: Final = 10_000  # lines; what comes beyond is dropped
_FLUSH_S = 1.0  # at the end of the program


def log_to_stderr(level: int = logging.INFO) -> None:
    """The server's own lines, with the time."""
    handler = Lines(2)
    handler.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("moeinf", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == "moeinf" else logging.ERROR)


class Lines(logging.Handler):
    """Writes lines to a file on a thread of its own."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._idle = threading.Event()
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() < MOST_WAITING:
            self._idle.clear()
            self._lines.put(self.format(record).encode("utf-8", "backslashreplace") + b"\n")

    def flush(self) -> None:
        """Waits until all is written, for a second at most."""
        until = time.monotonic() + _FLUSH_S
        while not self._lines.empty() and time.monotonic() < until:
            self._idle.wait(0.01)
        self._idle.wait(max(0.0, until - time.monotonic()))

    def _write(self) -> None:
        while True:
            if self._lines.empty():
                self._idle.set()
            line = self._lines.get()
            with suppress(OSError):  # nobody is there to read
                while line:
                    line = line[os.write(self._file, line) :]


_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class HarmlessFormatter(logging.Formatter):
    """Writes what clients have said so that it neither steers a terminal nor begins a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _printable(super().formatMessage(record))

    def formatException(self, ei: _Raised) -> str:
        return "\n".join(_printable(line) for line in super().formatException(ei).split("\n"))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
