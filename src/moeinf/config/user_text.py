"""Text that a user has written into a file, or sends through a pipe, by whatever editor and system."""

from __future__ import annotations

import codecs
import os
from importlib import resources
from pathlib import Path
from typing import BinaryIO, Final

from moeinf.errors import UsageError

_MARKS: Final = (  # a longer mark before the one that it begins with
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LOOKED_AT: Final = 4096  # bytes


def open_file(path: str | Path) -> BinaryIO:
    """Opens a file that a user names for reading. A FIFO to which nobody writes is empty. Raises OSError."""
    return open(path, "rb", opener=_open_at_once)


def text_of(flag: str, path: str | Path | None) -> str:
    """The text of a file that a flag names; path: None or "" for the text that comes along, of the public domain.

    Raises UsageError for a file that cannot be read, that is no text, or that holds none.
    """
    if not path:
        return resources.files("moeinf").joinpath("data/bench_text.txt").read_text(encoding="utf-8")
    try:
        with open_file(path) as file:
            text = decoded(file.read())
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read: {error.strerror}; name a text file") from error
    if "\ufffd" in text:
        raise UsageError(f"{flag} {path} is no UTF-8 text; save it as UTF-8")
    if not text.strip():
        raise UsageError(f"{flag} {path} is empty; give a text")
    return text


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else a FIFO is waited for until somebody writes
    os.set_blocking(descriptor, True)
    return descriptor


def decoded(data: bytes) -> str:
    """The text, without a byte order mark: UTF-8, or UTF-16 or UTF-32 as Windows writes them.

    What is of no encoding becomes U+FFFD.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    return data.decode(_unmarked(data[:_LOOKED_AT]), "replace")


def _unmarked(start: bytes) -> str:
    """UTF-8, unless every second byte of text in the Latin alphabet is zero, which UTF-8 has nowhere."""
    even, odd = start[0::2].count(0), start[1::2].count(0)
    if 4 * odd > len(start) > 0 and not even:
        return "utf-16-le"
    if 4 * even > len(start) > 0 and not odd:
        return "utf-16-be"
    return "utf-8"
