"""Finds stop strings in streamed text, also across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """Takes text; returns what can be shown now. Once `stopped`, the stop string and all behind it are dropped."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at, len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, _, self.found = min(found)
            self._held = ""
            return text[:at]
        keep = len(text) - num_begun(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Returns the text that was held back, when no more comes."""
        held, self._held = self._held, ""
        return held


def num_begun(text: str, marks: Sequence[str]) -> int:
    """Returns the length of the longest end of the text that is the beginning of a mark, but not all of it."""
    longest = min(len(text), max((len(mark) - 1 for mark in marks), default=0))
    return next((n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0)
