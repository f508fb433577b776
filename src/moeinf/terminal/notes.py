"""Lines to the user on standard error, beside the answer."""

from __future__ import annotations

import sys

from moeinf.terminal.screen import harmless


def say(line: str) -> None:
    """One line to stderr, harmless to a terminal."""
    sys.stderr.write(harmless(line) + "\n")
    sys.stderr.flush()


def say_below(line: str) -> None:
    """As `say`, where an answer or a progress bar may stand on the terminal's last line."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    say(line)
