"""Guesses at the tokens that come next in an answer: what a step may try before they are drawn (depth.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Guess(NamedTuple):
    """ids: that may follow, in order; () where nothing is known. kind: how sure they are is measured for each kind."""

    ids: Sequence[int]
    kind: str


NOTHING = Guess((), "")


class Drafter(Protocol):
    """Guesses at the tokens of one answer.

    kind: of all its guesses, each of which takes time, so that it is asked for no more than are worth trying; None:
    guessing costs nothing, and each guess tells its kind.
    """

    kind: str | None

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        """At most `most` tokens, 1 or more, that may follow `tokens`: the prompt without its pictures and the answer so
        far. These begin with those of the call before."""
        ...

    def close(self) -> None:
        """Called when the answer ends."""
        ...


@dataclass(slots=True)
class DraftCounts:
    """What came of the guesses in one answer."""

    drafted: int = 0  # tokens that were tried
    accepted: int = 0  # of these, tokens that were drawn
