"""The last line of a terminal, which shows how far long work is; elsewhere nothing is shown."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from moeinf.terminal.screen import bar_text, harmless, text_width
from moeinf.text.quantities import size_text

_REDRAW_S = 0.1
_PREFILL_SILENCE_S = 2.0
_BAR_COLUMNS = 20


class StatusLine:
    """The last line of a terminal. It writes nothing unless enabled, so that callers need not ask."""

    def __init__(self, stream: TextIO, *, enabled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = enabled
        self._stream = stream
        self._clock = clock
        self._drawn_at: float | None = None

    def show(self, text: str) -> None:
        """Draws over what was there, at most ten times a second."""
        now = self._clock()
        if not self.enabled or (self._drawn_at is not None and now - self._drawn_at < _REDRAW_S):
            return
        self._drawn_at = now
        self._write("\r" + _cut(harmless(text), shutil.get_terminal_size().columns - 1) + "\x1b[K")

    def clear(self) -> None:
        if self._drawn_at is not None:
            self._drawn_at = None
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LoadBar:
    """A bar for progress(bytes done, bytes in all), with the rate: of weights that are read or pinned."""

    def __init__(self, line: StatusLine, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """what: the work that is done, such as "loading demo"."""
        self._line = line
        self._what = what
        self._clock = clock
        self._first: tuple[float, int] | None = None  # time and bytes when reading began

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        self._first = self._first or (now, done)
        started, before = self._first
        rate = (done - before) / max(1e-3, now - started)
        percent = 100 * done // total if total else 100
        self._line.show(
            f"{self._what}: {percent:3d}% {bar_text(done, total, _BAR_COLUMNS)} "
            f"{size_text(done)}/{size_text(total)}   {rate / 1e9:.2f} GB/s"
        )


class ByteCount:
    """A bar for progress(bytes since the last call) of work whose size is known."""

    def __init__(self, line: StatusLine, label: str, total_bytes: int) -> None:
        self._line = line
        self._label = label
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def __call__(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        done, total = self._done_bytes, max(1, self._total_bytes)
        self._line.show(
            f"{self._label}: {min(100, 100 * done // total):3d}% {bar_text(done, total, _BAR_COLUMNS)} "
            f"{size_text(done)}/{size_text(total)}"
        )


class PrefillCount:
    """A count for progress(tokens done, tokens in all) of a prompt, which is shown after two seconds."""

    def __init__(self, line: StatusLine, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = line
        self._clock = clock
        self._started = clock()

    def __call__(self, done: int, total: int) -> None:
        if self._clock() - self._started >= _PREFILL_SILENCE_S:
            self._line.show(f"prefill {done}/{total} tokens")


def _cut(text: str, columns: int) -> str:
    while text_width(text) > columns:
        text = text[:-1]
    return text
