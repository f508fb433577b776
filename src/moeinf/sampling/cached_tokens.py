"""The tokens of one sequence, and what of them the next prompt finds computed: by itself, by another one, or before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from moeinf.models.layers.decoder import rounded_alike
from moeinf.models.layers.kv_cache import SharedRows
from moeinf.models.layers.soft_tokens import SoftTokens
from moeinf.sampling.room import Claim, Room


class KvCache(Protocol):
    """What a network keeps of the tokens it has seen."""

    length: int
    capacity: int
    reach: int  # tokens of the sequence, with those of its prompt that are still to come
    pictures: Sequence[SoftTokens]  # of the sequence, in order
    shared: SharedRows  # the memory of its rows
    on_hidden: Callable[[int, Any], None] | None  # see Cache

    def outgrown(self, length: int) -> bool:
        """Whether what it holds is of no use to a sequence of so many tokens."""
        ...

    def commit(self, num_tokens: int) -> None:
        """Counts the first tokens of a pass that was tried."""
        ...

    def truncate(self, length: int) -> int:
        """Forgets all but the first `length` tokens; returns how many are left: fewer where a state cannot go back."""
        ...

    @property
    def rewinds(self) -> bool:
        """Whether it can go back to any of its tokens."""
        ...

    @property
    def positions(self) -> int:
        """Which kind of positions its tokens have."""
        ...

    def begin_as(self, other: Any, length: int) -> None:
        """Holds the first `length` tokens of another sequence afterwards, and no longer its own."""
        ...


WORTH_TOKENS: Final = 64  # for whose sake a sequence takes the beginning of another, or waits for it

Source = Literal["", "live", "memory", "disk"]  # where the reused beginning of a prompt was; "": there is none


class Prefixes(Protocol):
    """What is kept of the sequences that a cache held before."""

    def borders(self, prompt: Sequence[int]) -> Sequence[int]:
        """After how many tokens of a prompt `keep` is to be called, as its cache cannot go back there; ascending."""
        ...

    def keep(self, tokens: Sequence[int]) -> None:
        """Copies what the cache holds, which are these tokens."""
        ...

    def leave(self, tokens: Sequence[int], length: int) -> None:
        """Called when the cache, which holds these tokens, is to lose all but the first `length`."""
        ...

    def restore(self, prompt: Sequence[int], live: int) -> tuple[int, Source]:
        """Brings the cache to the longest known beginning of `prompt`; returns its length, and where it came from.

        live: how many tokens the cache and the prompt both begin with.
        """
        ...

    def settle(self, tokens: Sequence[int]) -> None:
        """Called behind an answer, with all tokens of the cache."""
        ...

    def forget(self) -> None:
        """Drops what was copied."""
        ...

    def close(self, tokens: Sequence[int]) -> None:
        """Called when the cache, which holds these tokens, is given up for good."""
        ...


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two lists have in common, at their beginnings. Stretches are compared as a whole: prompts of tens
    of thousands are compared while others wait for their next token."""
    if type(one) is not type(other):
        one, other = list(one), list(other)
    low, high = 0, min(len(one), len(other))
    while low < high:  # the first `low` are common
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(slots=True)
class CachedTokens:
    """The tokens whose keys and values a cache holds, so that the next prompt reuses its common beginning.

    prefixes: where sequences are kept that had to leave the cache; None: nowhere.
    exact: whether no more is reused than what has the bits that the prompt itself would give
    (docs/contributing/numerics.md), and so nothing of answers. Else a chat that goes on has what was computed of it so
    far, in whatever passes.
    """

    cache: KvCache
    prefixes: Prefixes | None = None
    tokens: list[int] = field(default_factory=list)
    whole_pictures: bool = False  # whether no chunk may end within a picture, whose tokens have ids below 0
    exact: bool = False
    prompt_length: int = 0  # of the prompt that its first tokens were computed for
    reading: Sequence[int] = ()  # the prompt whose tokens it is being given
    all: Callable[[], Sequence[CachedTokens]] = tuple  # the sequences of the model
    room: Room | None = None  # the memory of all; None: each has its own
    claim: Claim = field(default_factory=Claim)
    # Leaves its cache to another answer; what it gives is told the tokens to go on with, and takes one again.
    lend: Callable[[CachedTokens], Callable[[Sequence[int]], None]] = lambda sequence: lambda prompt: None

    def begins_with(self, prompt: Sequence[int]) -> int:
        """How many tokens it and a prompt have in common, at their beginnings."""
        return self._common(self.tokens, prompt)

    def _common(self, tokens: Sequence[int], prompt: Sequence[int]) -> int:
        """The same of its tokens, or of those that it is being given."""
        common = common_length(tokens, prompt)
        if self.exact:
            common = min(common, self.prompt_length)
        goes_on = common > self.prompt_length  # of what one computes anew, few tokens are lost
        return common if goes_on or rounded_alike(self.prompt_length, len(prompt)) else 0

    def awaited(self, prompt: Sequence[int]) -> tuple[CachedTokens, int] | None:
        """A sequence that is being given what the prompt begins with, more than any has of it so far, and the tokens
        that it is to have before this one goes on. A chat awaits none that is read behind all chats."""
        others = [each for each in self.all() if each is not self]
        held = max([each.begins_with(prompt) for each in (self, *others)])
        for each in others:
            if each.claim.background and not self.claim.background:
                continue
            coming = min(each._common(each.reading, prompt), len(prompt) - 1)
            if not self.cache.rewinds:  # it goes on where a state was kept
                coming = max((border for border in each.borders(each.reading) if border <= coming), default=0)
            if coming >= held + WORTH_TOKENS:
                return each, coming
        return None

    def given(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt take no memory of their own, as another sequence has them. Its own are none of
        these: where its cache cannot go back to them, they are lost."""
        if not (self.cache.rewinds and self.cache.shared.shares):
            return 0
        coming = self.awaited(prompt)
        return max([0 if coming is None else coming[1], *(each.begins_with(prompt) for each in self.all())])

    def give_up(self) -> None:
        """Gives back the memory of its tokens, of which is kept what may be."""
        tokens, self.tokens = self.tokens, []
        if self.prefixes is not None:
            self.prefixes.leave(tokens, 0)
        self.clear()
        self.claim = Claim(background=self.claim.background, after=self.claim.after)

    def forget(self) -> None:
        """Empties the cache, and what was kept as well."""
        self.clear()
        if self.prefixes is not None:
            self.prefixes.forget()

    def clear(self) -> None:
        """Empties the cache."""
        self.tokens = []
        self.cache.shared.write_from(self.cache.truncate(0))
        self.cache.shared.trim(0)

    @contextmanager
    def telling(self, told: Callable[[int, Any], None] | None) -> Iterator[None]:
        """While entered, `told` is told of each token's state, as Cache.on_hidden: so all of a prompt is computed, and
        nothing of it is kept. None: nobody, and it goes on as ever."""
        if told is None:
            yield
            return
        self.give_up()
        before = self.prefixes, self.all, self.cache.on_hidden
        self.prefixes, self.all, self.cache.on_hidden = None, tuple, told
        try:
            yield
        finally:
            self.clear()
            self.prefixes, self.all, self.cache.on_hidden = before

    def rewind_to(self, prompt: Sequence[int]) -> tuple[int, Source]:
        """Keeps or fetches what is known of `prompt` but for its last token; how many tokens, and where from."""
        common = min(self.begins_with(prompt), len(prompt) - 1)
        tokens, self.tokens = self.tokens, []  # of a cache that is changed until the end of this
        if self.cache.outgrown(len(prompt)):
            if self.prefixes is not None:
                self.prefixes.leave(tokens, 0)
            self.cache.truncate(0)
            tokens, common = [], 0
        self.cache.reach = len(prompt)
        if self.prefixes is not None and common < len(tokens):
            self.prefixes.leave(tokens, common)
        common = self._begun(prompt[:-1], common)
        if self.prefixes is None:
            reused = self.cache.truncate(common)
            source: Source = "live" if reused else ""
        else:
            reused, source = self.prefixes.restore(prompt[:-1], common)
        self.tokens = list(prompt[:reused])
        if source != "live" or rounded_alike(self.prompt_length, len(prompt)):
            self.prompt_length = len(prompt)
        return reused, source

    def borders(self, prompt: Sequence[int]) -> Sequence[int]:
        """Where chunks of a prompt have to end because what the cache then holds is to be kept; ascending."""
        return () if self.prefixes is None else self.prefixes.borders(prompt)

    def _begun(self, prompt: Sequence[int], common: int) -> int:
        """Keeps the first `common` tokens, or takes those of the sequence that begins most like a prompt, where that is
        worth it; how many it then has."""
        others = [each for each in self.all() if each is not self and each.cache.positions == self.cache.positions]
        alike = [(each.begins_with(prompt), each) for each in others]
        most, best = max(alike, key=lambda pair: pair[0], default=(0, None))
        if best is None or not self.cache.rewinds or most < common + WORTH_TOKENS:
            self.cache.shared.write_from(common)
            return common
        self.cache.begin_as(best.cache, most)
        self.prompt_length = best.prompt_length
        return most

    def end_of_chunk(self, prompt: Sequence[int], start: int, most: int, borders: Sequence[int]) -> int:
        """Where the chunk of a prompt ends that begins at `start` and may have so many tokens."""
        end = min(start + most, len(prompt))
        end = next((border for border in borders if start < border < end), end)
        return _beside_pictures(prompt, start, end) if self.whole_pictures else end

    def keep(self) -> None:
        """Keeps what the cache holds."""
        if self.prefixes is not None:
            self.prefixes.keep(self.tokens)

    def settle(self) -> None:
        """Called behind an answer."""
        if self.prefixes is not None:
            self.prefixes.settle(self.tokens)

    def close(self) -> None:
        """Called when no further answer follows."""
        if self.prefixes is not None:
            self.prefixes.close(self.tokens)


def _beside_pictures(prompt: Sequence[int], start: int, end: int) -> int:
    """Where a chunk ends that would end within a picture: in front of it, or behind where it begins with it."""
    first = end
    while start < first < len(prompt) and prompt[first] < 0 and prompt[first - 1] < 0:
        first -= 1
    if first > start:
        return first
    while end < len(prompt) and prompt[end] < 0:
        end += 1
    return end
