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
        keep = len(text) - self._num_held(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Length of the longest suffix of text that begins some stop string."""
        longest = min(len(text), max((len(stop) - 1 for stop in self._stops), default=0))
        sizes = range(longest, 0, -1)
        return next((n for n in sizes if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
