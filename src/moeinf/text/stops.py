"""Stop strings, found in streamed text across token borders."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What can be shown now. Once `stopped`, the stop string and all behind it is dropped."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = len(text) - num_begun(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def num_begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest suffix of text that begins some mark without being the whole of it."""
    longest = min(len(text), max((len(mark) - 1 for mark in marks), default=0))
    return next((n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0)
