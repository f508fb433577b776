"""The sequences that a model keeps open: which of their caches an answer goes on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.room import Claim, Room


class Sequences:
    """At most so many caches of sequences as answers are made side by side, each made when it is first needed."""

    def __init__(self, make: Callable[[], CachedTokens], most: int = 1, room: Room | None = None) -> None:
        """room: the memory of all; None: there is enough for each at its full length."""
        self._make, self._most, self.room = make, most, room
        if room is not None:
            room.idle = lambda: [*self._free, *(each for each in reversed(self._taken) if each.claim.waits)]
            room.taken = lambda: self._taken
        self._free: list[CachedTokens] = []  # the one that was used last is behind
        self._taken: list[CachedTokens] = []
        self._lent: list[CachedTokens] = []  # of answers that have left their caches to others
        self._free.append(self._known(self._make()))

    def _known(self, made: CachedTokens) -> CachedTokens:
        made.all, made.room, made.lend = (lambda: (*self._free, *self._taken)), self.room, self._lend
        return made

    @property
    def lent(self) -> int:
        """How many answers have left their caches to others, and wait."""
        return len(self._lent)

    def _lend(self, sequence: CachedTokens) -> Callable[[Sequence[int]], None]:
        """See CachedTokens.lend."""
        pictures = sequence.cache.pictures
        self._taken, self._lent = _without(self._taken, sequence), [*self._lent, sequence]
        self._free.insert(0, self._known(replace(sequence, claim=Claim())))
        sequence.tokens = []

        def come_back(prompt: Sequence[int]) -> None:
            free = self._chosen(prompt)
            self._lent, self._taken = _without(self._lent, sequence), [*self._taken, sequence]
            sequence.cache, sequence.prefixes = free.cache, free.prefixes
            sequence.tokens, sequence.prompt_length = free.tokens, free.prompt_length
            sequence.cache.pictures = pictures

        return come_back

    @contextmanager
    def taken(self, prompt: Sequence[int]) -> Iterator[CachedTokens]:
        """A sequence for the answer to a prompt: the one that begins most like it, where that is half of what it holds
        or all of the prompt; else a new one, else the one that was left alone for longest, which begin as others do
        (CachedTokens.rewind_to). What it then holds is kept."""
        sequence = self._chosen(prompt)
        self._taken.append(sequence)
        try:
            yield sequence
            sequence.settle()
        except GeneratorExit:  # whoever read the answer has gone, but what was computed is good
            if not _is_in(self._lent, sequence):
                sequence.settle()
            raise
        finally:
            if not _is_in(self._lent, sequence):
                self._free.append(sequence)
            self._taken, self._lent = _without(self._taken, sequence), _without(self._lent, sequence)
            if self.room is not None:
                self.room.leaves(sequence)

    def _chosen(self, prompt: Sequence[int]) -> CachedTokens:
        alike = [(each.begins_with(prompt), each) for each in self._free]
        most, best = max(alike, key=lambda pair: pair[0], default=(0, None))
        if best is None or most < min(len(prompt), len(best.tokens) / 2):
            if len(self._free) + len(self._taken) < self._most:
                return self._known(self._make())
            best = self._free[0]
        self._free.remove(best)
        return best

    @property
    def last(self) -> CachedTokens:
        """The one that was used last, of those that no answer has."""
        return self._free[-1]

    @contextmanager
    def afresh(self) -> Iterator[None]:
        """While entered, the next answer finds nothing that was computed before, and nothing of it is kept."""
        sequence = self._free[-1]
        sequence.clear()
        prefixes, sequence.prefixes = sequence.prefixes, None
        others, self._free = self._free[:-1], [sequence]
        try:
            yield
        finally:
            sequence.prefixes = prefixes
            self._free = [*others, *self._free]

    def keep_nothing(self) -> None:
        """Nothing can be copied from the caches any more."""
        for sequence in (*self._free, *self._taken):
            sequence.prefixes = None

    def close(self) -> None:
        """Keeps what is worth keeping, and gives back keys and values."""
        sequences, self._free = self._free, []
        with ExitStack() as closing:
            for sequence in sequences:
                closing.callback(sequence.close)


def _is_in(sequences: Sequence[CachedTokens], one: CachedTokens) -> bool:
    """Whether it is one of them, and not as one of them."""
    return any(each is one for each in sequences)


def _without(sequences: Sequence[CachedTokens], one: CachedTokens) -> list[CachedTokens]:
    return [each for each in sequences if each is not one]
