"""Guesses that an answer goes on as its prompt, or the answer itself, went on behind the same few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moeinf.sampling.speculation.drafts import NOTHING, Guess

LEAST: Final = 3  # tokens that have to be the same
_PLACES: Final = 4  # the last ones that are compared
_LONGEST: Final = 32  # tokens that are compared
_SURE: Final = (16, 8, 5)  # tokens that are the same, from the surest kind of guess on


class PromptLookup:
    """moeinf.sampling.speculation.drafts.Drafter. It keeps where each LEAST tokens were before."""

    kind: str | None = None

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}  # behind which n-gram: the last places, ascending
        self._seen = LEAST  # tokens that were looked at

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        self._follow(tokens)
        end = len(tokens)
        best, longest = 0, 0
        for place in reversed(self._places.get(tuple(tokens[end - LEAST :]), ())):
            if (same := _same(tokens, place, end)) > longest:
                best, longest = place, same
        if not longest:
            return NOTHING
        kind = next((f"{least} tokens alike" for least in _SURE if longest >= least), f"{LEAST} tokens alike")
        return Guess(tokens[best : best + most], kind)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Notes the places in front of the last token: nothing follows behind that."""
        for end in range(self._seen, len(tokens)):
            places = self._places.setdefault(tuple(tokens[end - LEAST : end]), [])
            places.append(end)
            if len(places) > _PLACES:
                del places[0]
        self._seen = max(self._seen, len(tokens))

    def close(self) -> None:
        self._places.clear()


def _same(tokens: Sequence[int], place: int, end: int) -> int:
    """How many tokens in front of both are the same."""
    most = min(place, _LONGEST)
    return next((n for n in range(LEAST, most) if tokens[place - 1 - n] != tokens[end - 1 - n]), most)
