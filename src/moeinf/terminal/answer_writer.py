"""How an answer is written to standard output, piece by piece."""

from __future__ import annotations

import shutil
from typing import TextIO

from moeinf.terminal.screen import WordWrap, grey, harmless, moves_cursor


class AnswerWriter:
    """Writes the pieces of an answer as they come.

    On a terminal the text is made harmless and wrapped, without a space at its beginning, and an empty line follows it.
    Elsewhere it stays as the model made it, but for the newlines at its end, which become exactly one. As a context
    manager the writer ends what it has written; where an error comes before the first piece, it writes nothing.

    `think` writes the pieces of thoughts in grey, between two lines that say so. It is None where thoughts are not
    shown. Off a terminal they never are, so that whatever reads the answer gets nothing else.
    """

    def __init__(self, stream: TextIO, *, tty: bool, wrap: bool, thoughts: bool = True) -> None:
        self._stream = stream
        self._tty = tty
        self._wrap = WordWrap(_columns) if tty and wrap and moves_cursor() else None
        self._newlines = ""
        self._begun = self._thinking = False
        self.think = self._think if tty and thoughts else None

    def __enter__(self) -> AnswerWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._begun:
            self._stream.write("\n\n" if self._tty else "\n")
            self._stream.flush()

    def _think(self, piece: str) -> None:
        if not self._thinking:
            piece = ("\n\n" if self._begun else "") + "Thinking...\n" + piece
        self._begun = self._thinking = True
        self._stream.write(grey(self._wrapped(piece)))
        self._stream.flush()

    def _wrapped(self, piece: str) -> str:
        piece = harmless(piece)
        return self._wrap.push(piece) if self._wrap else piece

    def write(self, piece: str) -> None:
        if self._thinking:
            self._thinking = False
            self._stream.write(grey(self._wrapped("\n...done thinking.\n\n")))
        if self._tty:
            spaced = not self._begun and piece[:1] == " " and piece[1:2].strip()  # of the token; an indent is kept
            piece = self._wrapped(piece[1:] if spaced else piece)
        else:
            piece = self._newlines + piece
            text = piece.rstrip("\n")
            piece, self._newlines = text, piece[len(text) :]
        self._begun = True
        self._stream.write(piece)
        self._stream.flush()


def _columns() -> int:
    return shutil.get_terminal_size().columns
