"""Makes standard input, output and error usable, whatever the command was started with."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from moeinf.errors import OutputError

# A stream that is closed gets opened, in the mode in which using it fails or gives nothing. If it stayed closed, the
# next file to be opened would get its number, and a message of some library would be written into a model.
_MODES = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}


def open_streams() -> None:
    """Makes sys.stdin, sys.stdout and sys.stderr usable. Call it once, before anything is opened.

    Writing to stdout then raises OutputError where it fails; what cannot be written to stderr is lost without a word.
    """
    for fd, mode in _MODES.items():
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (lives as long as the process)
    sys.stdout = _text(sys.stdout, _Output(1, "w", closefd=False))
    sys.stderr = _text(sys.stderr, _Errors(2, "w", closefd=False))


def drop_output() -> None:
    """Discards what is still to be written to stdout, so that the interpreter does not fail at it when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class _Output(io.FileIO):
    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                f"the output cannot be written to standard output: {error.strerror}; "
                "check where it is sent, and repeat the command"
            ) from error


class _Errors(io.FileIO):
    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return memoryview(data).nbytes  # type: ignore[arg-type]


def _text(stream: TextIO | None, raw: io.FileIO) -> TextIO:
    """A text stream over `raw` with the encoding that the interpreter chose.

    A character that this encoding lacks is written as \\xe9, so that an answer does not end there.
    """
    encoding = stream.encoding if stream else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty() or raw.fileno() == 2
    )
