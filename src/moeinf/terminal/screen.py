"""How numbers, times, tables and model text look on a terminal."""

from __future__ import annotations

import math
import os
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime

_STEPS = ("B", "KB", "MB", "GB", "TB", "PB")
# C0 (but newline and tab), DEL, C1 and the bidirectional overrides: model text must not drive the terminal.
_CONTROLS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


def size_text(num_bytes: float) -> str:
    """SI: 4.7 GB, 42 GB."""
    step = 0
    while num_bytes >= 999.5 and step < len(_STEPS) - 1:
        num_bytes /= 1000
        step += 1
    return f"{num_bytes:.0f} {_STEPS[step]}" if step == 0 or num_bytes >= 9.95 else f"{num_bytes:.1f} {_STEPS[step]}"


def binary_size_text(num_bytes: float) -> str:
    """GiB, MiB or KiB, as memory is counted: 3.62 GiB, 44.1 MiB."""
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.{power - 1}f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"


def at_least_text(num_bytes: int) -> str:
    """The same of a lower bound, so that what is shown suffices: rounded up."""
    power = 3 if num_bytes >= 1 << 30 else 2
    step = 1024**power / 10 ** (power - 1)  # what the last digit shown counts
    return binary_size_text(math.ceil(num_bytes / step) * step) if num_bytes >= 1 << 20 else binary_size_text(num_bytes)


def count_text(number: int) -> str:
    """46.7B, 5.56M, 512K."""
    for size, digits, letter in ((1e9, 1, "B"), (1e6, 2, "M"), (1e3, 0, "K")):
        if number >= size:
            text = f"{number / size:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) + letter
    return str(number)


def ago_text(moment: datetime, now: datetime) -> str:
    """`2 weeks ago`, as ollama says it."""
    seconds = int((now - moment).total_seconds())
    return f"{_span_text(max(0, seconds))} ago"


def _span_text(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 1:
        return "Less than a second"
    if seconds < 60:
        return _plural(seconds, "second")
    if hours < 1:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    for unit_hours, unit in ((24, "day"), (24 * 7, "week"), (24 * 30, "month")):
        if hours < {"day": 24 * 14, "week": 24 * 60, "month": 24 * 730}[unit]:
            return _plural(hours // unit_hours, unit)
    return _plural(hours // (24 * 365), "year")


def _plural(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def duration_text(seconds: float) -> str:
    """As Go prints durations: 4.102ms, 41.231s, 1m3.2s, 1h0m5s."""
    if seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def eta_text(seconds: float) -> str:
    """1h5m, 4m28s, 99h+."""
    whole = int(seconds)
    if whole >= 99 * 3600:
        return "99h+"
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"


def table(rows: Iterable[Sequence[str]], gap: int = 4) -> list[str]:
    """Left-aligned columns with gaps of so many spaces, no borders."""
    grid = [list(row) for row in rows]
    widths = [max(map(text_width, column)) for column in zip(*grid, strict=True)]
    return [(" " * gap).join(map(_padded, row, widths)).rstrip() for row in grid]


def _padded(cell: str, columns: int) -> str:
    return cell + " " * (columns - text_width(cell))


def section(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """A titled block of `show`, followed by an empty line."""
    return [f"  {title}", *(f"    {line}" for line in table(rows)), ""]


def wrapped(text: str, columns: int) -> str:
    """Lines that fit a terminal, broken behind a comma, a colon or a dot in the middle: figures keep their units."""
    whole = re.sub(r"(?<![·,:]) (?!·)", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(whole, max(20, columns - 3), break_long_words=False, break_on_hyphens=False)
    return "\n  ".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def bar_text(done: int, total: int, width: int) -> str:
    """`▕████   ▏`"""
    filled = int(width * min(done, total) / total) if total else width
    return f"▕{'█' * filled}{' ' * (width - filled)}▏"


def harmless(text: str) -> str:
    """Text without the control characters that a terminal acts on; newline and tab stay."""
    return text.translate(_CONTROLS)


def grey(text: str) -> str:
    """Text that stands back on a terminal, unless the user wants no colours (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("", "dumb")
    return text if plain else f"\x1b[90m{text}\x1b[39m"


def text_width(text: str) -> int:
    """Columns on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class WordWrap:
    """Breaks streamed text at words: a word that does not fit any more is taken back and put on the next line."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._line = 0  # columns used so far
        self._word = ""  # the unfinished word at the end of the line

    def push(self, text: str) -> str:
        """What to write to the terminal."""
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
