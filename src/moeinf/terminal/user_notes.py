"""Lines to the user on standard error, beside the answer."""

from __future__ import annotations

import logging
import sys
from collections import deque

from moeinf.terminal.screen import for_terminal, harmless


class Notices:
    """Keeps what a model tells until nothing else stands on the terminal's last line; any thread may `add`."""

    def __init__(self) -> None:
        self._waiting = deque[str]()

    def add(self, notice: str) -> None:
        self._waiting.append(notice)

    def show(self) -> None:
        """Says each notice once. Those that come in meanwhile are said the next time."""
        for _ in range(len(self._waiting)):
            say(f"note: {self._waiting.popleft()}")


class NoteHandler(logging.Handler):
    """Says what the product logs, as where nobody stands ready to be told, as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        say_below(f"note: {record.getMessage()}")


def say(line: str) -> None:
    """One line, or several, to stderr: harmless to a terminal, and fitted to it."""
    sys.stderr.write(for_terminal(harmless(line), sys.stderr) + "\n")
    sys.stderr.flush()


def say_below(line: str) -> None:
    """As `say`, where an answer or a progress bar may stand on the terminal's last line."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    say(line)
