"""Text that a user has written into a file, or sends through a pipe, by whatever editor and system."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import BinaryIO, Final

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
