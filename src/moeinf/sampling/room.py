"""Memory for keys and values, which all sequences share: who has room, who waits for it, and what is freed first.

A request begins once there is room for its prompt and the beginning of its answer, for which a chat lets the answer to
a background request pause, and takes more as it grows. Where
there is too little, sequences that nobody uses are freed first, the one that was left alone for longest before others;
then what is kept of earlier prompts. Where that is not enough, the answer that began last is paused: it gives up its
memory, and goes on once another has ended and there is room again, with the numbers that it had (loop.py). So the one
that began first always comes to its end, as there is room for one sequence of full length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

RESERVE_TOKENS: Final = 256  # of an answer, that there is room for when it begins
CLAIMED_AT_ONCE: Final = 64  # tokens


class Paused(Exception):
    """Others need the memory of a sequence."""


@dataclass(slots=True)
class Claim:
    """What a sequence was promised while an answer has it."""

    tokens: int = 0  # that there is room for; 0: it has not begun
    given: int = 0  # of these, that take no memory of their own
    waits: bool = False  # for room to begin
    background: bool = False  # whether nobody waits for the answer at a screen
    paused: bool = False  # whether it is to give its memory up
    after: int = 0  # how many answers must have ended before it goes on, where it was paused


class Holder(Protocol):
    """A sequence (moeinf.sampling.cached_tokens.CachedTokens)."""

    tokens: list[int]
    claim: Claim

    def give_up(self) -> None:
        """Gives back the memory of its tokens, of which is kept what may be."""
        ...


class Room:
    """The memory of all sequences of a model."""

    def __init__(
        self,
        num_bytes: int,
        token_bytes: int,
        used_bytes: Callable[[], int | None] = lambda: None,
        lend: Callable[[int], int] | None = None,
    ) -> None:
        """used_bytes: what all tokens take now; None: the same for each. lend: asked for so many bytes of what is kept
        of prompts, gives as many as it returns; with a negative number it has them back."""
        self.num_bytes, self._token_bytes, self._used_bytes = num_bytes, token_bytes, used_bytes
        self._lend = lend or (lambda num_bytes: 0)
        self._lent = self._ended = 0  # bytes; answers
        self.idle: Callable[[], Sequence[Holder]] = tuple  # that no answer has, the one that was used last behind
        self.taken: Callable[[], Sequence[Holder]] = tuple  # by answers, the one that began last behind

    def begins(self, holder: Holder, tokens: int, given: Callable[[], int]) -> bool:
        """Whether an answer begins now, of which so many tokens have room then. given(): how many of them take no
        memory of their own, as others have them. Else ask again after the next step."""
        holder.claim.waits, holder.claim.paused = True, False
        first = min((each for each in self._by_rank() if each.claim.waits), key=lambda each: each.claim.background)
        others = any(each.claim.tokens for each in self.taken() if each is not holder)
        if first is not holder or (others and holder.claim.after > self._ended):
            return False
        if not self._has_room(holder, tokens, given) and others:  # else nothing is left that could make some
            begun = [each for each in self._by_rank() if each.claim.tokens]
            if begun[-1].claim.background > holder.claim.background and not any(each.claim.paused for each in begun):
                self._pause(begun[-1])
            return False
        holder.claim = Claim(tokens, given(), background=holder.claim.background)
        return True

    def grows(self, holder: Holder, tokens: int, most: int) -> bool:
        """Whether a sequence, which never has more than `most`, may have so many tokens now. Else ask again after the
        next step. Raises Paused."""
        claim = holder.claim
        if claim.paused:
            raise Paused
        if min(tokens, most) <= claim.tokens:
            return True
        tokens = min(tokens + CLAIMED_AT_ONCE, most)
        begun = [each for each in self._by_rank() if each.claim.tokens]
        if self._has_room(holder, tokens, lambda: claim.given) or begun == [holder]:
            claim.tokens = tokens
            return True
        staying = [each for each in begun if not each.claim.paused]
        if staying == [holder]:  # the others are giving theirs up
            return False
        self._pause(staying[-1])
        if staying[-1] is holder:
            raise Paused
        return False

    def _pause(self, holder: Holder) -> None:
        """Until an answer has ended."""
        holder.claim.paused, holder.claim.after = True, self._ended + 1

    def leaves(self, holder: Holder) -> None:
        """Called when an answer has ended. What was lent is given back once all fits without it; where no answer is
        left, what nobody uses makes room for that."""
        holder.claim = Claim()
        self._ended += 1
        while self._lent:
            if self._used + self._promised(None) <= self.num_bytes:
                self._lend(-self._lent)
                self._lent = 0
            elif self.taken() or not self._free_one():
                break

    def _by_rank(self) -> list[Holder]:
        """Of the sequences that answers have, those that are paused last first."""
        return sorted(self.taken(), key=lambda each: each.claim.background)

    def _has_room(self, holder: Holder, tokens: int, given: Callable[[], int]) -> bool:
        """Whether there is room for so many tokens of a sequence, once what may go has gone."""
        while True:
            own = max(0, tokens - max(given(), len(holder.tokens))) * self._token_bytes
            short = self._used + self._promised(holder) + own - self.num_bytes - self._lent
            if short <= 0:
                return True
            if self._free_one():
                continue
            lent = self._lend(short)
            if lent <= 0:
                return False
            self._lent += lent

    def _free_one(self) -> bool:
        """Frees the sequence that was left alone for longest; False where nobody has left any."""
        idle = next((each for each in self.idle() if each.tokens), None)
        if idle is not None:
            idle.give_up()
        return idle is not None

    @property
    def _used(self) -> int:
        found = self._used_bytes()
        if found is None:
            every = {id(each): len(each.tokens) for each in (*self.idle(), *self.taken())}
            found = sum(every.values()) * self._token_bytes
        return found

    def _promised(self, but: Holder | None) -> int:
        """Bytes of the tokens that are still to come."""
        tokens = sum(
            max(0, each.claim.tokens - max(each.claim.given, len(each.tokens)))
            for each in self.taken()
            if each is not but
        )
        return tokens * self._token_bytes
