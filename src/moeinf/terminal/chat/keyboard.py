"""The keyboard of a chat between two prompts: what is typed waits for the next prompt, unseen."""

from __future__ import annotations

import os
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from moeinf.terminal.screen import moves_cursor

_NO_BRACKETED_PASTE = "\x1b[?2004l"  # which the reader leaves on (see line_editor.py)
_IFLAG, _LFLAG, _CC = 0, 3, 6  # places in what termios tells


@contextmanager
def typing_unseen() -> Iterator[None]:
    """Meanwhile standard input, where it is a terminal that can edit lines, is as `hush` makes it; Ctrl-C works."""
    fd = sys.stdin.fileno()
    if not (os.isatty(fd) and moves_cursor()):
        yield
        return
    before = termios.tcgetattr(fd)
    hush(fd)
    try:
        yield
    finally:
        with suppress(termios.error, OSError):  # the terminal has gone
            termios.tcsetattr(fd, termios.TCSANOW, before)
            sys.stdout.write(_NO_BRACKETED_PASTE)
            sys.stdout.flush()


def hush(fd: int) -> None:
    """Has a terminal show nothing of what is typed, and keep each key as it is: Enter stays apart from Ctrl-J."""
    with suppress(termios.error):  # it has gone: whoever reads from it says so
        told = termios.tcgetattr(fd)
        told[_IFLAG] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        told[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        told[_CC][termios.VMIN], told[_CC][termios.VTIME] = 1, 0
        termios.tcsetattr(fd, termios.TCSANOW, told)


def lines_typed_ahead(fd: int) -> str:
    """What waits in a terminal since before it was hushed.

    It made a newline of Enter, which at a prompt is Ctrl-J, and of Ctrl-D an end, which Linux now tells as a zero.
    """
    data = b""
    while select.select([fd], [], [], 0)[0] and (piece := os.read(fd, 4096)):
        data += piece
    return data.replace(b"\0", b"\x04").decode("utf-8", "replace").replace("\n", "\r")
