"""Tells whether a place in an answer's text is quoted: within a fence of code, within code in a line, or in quotes."""

from __future__ import annotations

_FENCES = ("```", "~~~")
_QUOTES = "`'\"“‘«(["
_MAX_LINE_CHARS = 2000  # of a line that are remembered


class Quoting:
    def __init__(self) -> None:
        self._line = ""  # the last one, as far as it came
        self._in_fence = False

    def add(self, text: str) -> None:
        """Takes text that comes next."""
        self._in_fence, line = self._behind(text)
        self._line = line[-_MAX_LINE_CHARS:]

    def quotes(self, text: str) -> bool:
        """Whether what follows behind this text, which comes next, is quoted."""
        in_fence, line = self._behind(text)
        return (
            in_fence or line.lstrip().startswith(_FENCES) or line.count("`") % 2 == 1 or line.endswith(tuple(_QUOTES))
        )

    def _behind(self, text: str) -> tuple[bool, str]:
        *lines, last = (self._line + text).split("\n")
        num_fences = sum(line.lstrip().startswith(_FENCES) for line in lines)
        return self._in_fence != (num_fences % 2 == 1), last
