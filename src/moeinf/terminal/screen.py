"""How tables, bars and the text of a model look on a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

# C0 (but newline and tab), DEL, C1 and the bidirectional overrides: model text must not drive the terminal.
_CONTROLS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]

_LATER_JAMO = frozenset(map(chr, range(0x1160, 0x1200)))  # of a syllable: they stand where its first letter does
_SECOND_COLUMN = re.compile(r" *\S+(?: \S+)* {2,}(?=\S)")


def table(rows: Iterable[Sequence[str]], gap: int = 4) -> list[str]:
    """Lines of left-aligned columns, `gap` spaces apart, without borders."""
    grid = [list(row) for row in rows]
    widths = [max(map(text_width, column)) for column in zip(*grid, strict=True)]
    return [(" " * gap).join(map(_padded, row, widths)).rstrip() for row in grid]


def _padded(cell: str, columns: int) -> str:
    return cell + " " * (columns - text_width(cell))


def section(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """A titled block of `show`, followed by an empty line."""
    return [f"  {title}", *(f"    {line}" for line in table(rows)), ""]


def wrapped(text: str, columns: int) -> str:
    """The text in lines that fit a terminal. A line breaks at a comma, a colon or a `·`: figures keep their units."""
    whole = re.sub(r"(?<![·,:]) (?!·)", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(whole, max(20, columns - 3), break_long_words=False, break_on_hyphens=False)
    return "\n  ".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def fitted(text: str, columns: int) -> str:
    """The text with lines that are wider than a terminal broken between words.

    What comes behind a break is indented: to where the second column begins, in a line that has two.
    """
    return "\n".join(line if text_width(line) <= columns else _fitted_line(line, columns) for line in text.split("\n"))


def _fitted_line(line: str, columns: int) -> str:
    begin = len(line) - len(line.lstrip())
    second = _SECOND_COLUMN.match(line)
    indent = second.end() if second is not None and second.end() <= columns * 2 // 3 else min(begin + 2, columns // 2)
    how = {"break_long_words": False, "break_on_hyphens": False, "expand_tabs": False, "replace_whitespace": False}
    return "\n".join(textwrap.wrap(line, columns, subsequent_indent=" " * indent, **how))  # type: ignore[arg-type]


def for_terminal(text: str, stream: TextIO) -> str:
    """What to write to a stream: for a terminal, made harmless, and fitted to it."""
    return fitted(harmless(text), shutil.get_terminal_size().columns) if stream.isatty() else text


def moves_cursor() -> bool:
    """Whether the terminal is one that can take back what it shows."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb")


def can_draw(stream: TextIO) -> bool:
    """Whether a line that was shown there can be drawn over."""
    return stream.isatty() and moves_cursor()


def bar_text(done: int, total: int, width: int) -> str:
    """`▕████   ▏`"""
    filled = int(width * min(done, total) / total) if total else width
    return f"▕{'█' * filled}{' ' * (width - filled)}▏"


def harmless(text: str) -> str:
    """The text without the control characters that a terminal acts on; newline and tab stay."""
    return text.translate(_CONTROLS)


def print_harmless(text: str) -> None:
    """Prints a text that may come with a checkpoint, on a terminal without the characters that it would act on."""
    print(harmless(text) if sys.stdout.isatty() else text)


def print_fitted(text: str) -> None:
    """Prints lines for people, as `for_terminal` has them."""
    print(for_terminal(text, sys.stdout))


def grey(text: str) -> str:
    """The text in grey, unless the user wants no colours (https://no-color.org)."""
    return f"\x1b[90m{text}\x1b[39m" if has_colours() else text


def has_colours() -> bool:
    """Whether a terminal may be given colours."""
    return not os.environ.get("NO_COLOR") and moves_cursor()


def text_width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf") or char in _LATER_JAMO:
        return 0 if char != "\N{SOFT HYPHEN}" else 1
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class WordWrap:
    """Wraps streamed text at words: a word that does not fit is taken back and put on the next line.

    columns: tells how wide the terminal is now. One that was resized has laid out anew what it showed, or cut it off:
    the unfinished word is left where that has put it.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._tell_columns = columns
        self._columns = columns()
        self._line = 0  # columns used so far
        self._word = ""  # the unfinished word at the end of the line

    def push(self, text: str) -> str:
        """What to write to the terminal for this piece of text."""
        columns = self._tell_columns()
        if columns != self._columns:
            self._columns, self._line, self._word = columns, self._line % columns, ""
        return "".join(map(self._push_char, text))

    def _push_char(self, char: str) -> str:
        if char == "\n":
            self._line, self._word = 0, ""
            return char
        width = 8 - self._line % 8 if char == "\t" else _char_width(char)
        if self._line + width > self._columns - 1:
            return self._break(char, width)
        self._line += width
        self._word = "" if char.isspace() or width == 2 else self._word + char  # CJK may break anywhere
        return char

    def _break(self, char: str, width: int) -> str:
        word, word_width = self._word, text_width(self._word)
        if char.isspace():
            self._line, self._word = 0, ""
            return "\n"
        if not word or word_width + width >= self._columns - 1:  # nothing to take back, or longer than a line
            self._line, self._word = width, char if width != 2 else ""
            return "\n" + char
        self._line, self._word = word_width + width, word + char
        return f"\x1b[{word_width}D\x1b[K\n{word}{char}"
