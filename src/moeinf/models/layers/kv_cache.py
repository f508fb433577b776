"""What a model keeps of the tokens it has seen: a state for each layer, and their number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from moeinf.models.layers.array_math import A
from moeinf.models.layers.soft_tokens import SoftTokens
from moeinf.types import ByteArray

COPIED_TOKENS: Final = 256  # of a sequence that another begins as, at once


class LayerState(Protocol):
    """Keys and values, compressed ones, or a recurrent state."""

    @property
    def rewinds(self) -> bool:
        """Whether the state after fewer tokens can be had again; a recurrent one only begins anew."""
        ...

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens; of a state that does not rewind, length is 0."""
        ...

    # One that does not rewind keeps what a pass makes of it apart until `commit(rows)`, as a pass may be given up
    # half-way. In front of one that is tried, `try_rows(rows)` tells its rows, any number of which may be committed.


@runtime_checkable
class RowState(Protocol):
    """A state that rewinds, of which a stretch of tokens can be copied out and in: a row of each plane for a token."""

    planes: int  # such as the keys and the values of each head
    row_bytes: int  # of a token in one plane

    def save_rows(self, start: int, into: ByteArray) -> None:
        """Fills into [planes, tokens, row_bytes], in host memory, with the rows of the tokens from `start`."""
        ...

    def load_rows(self, start: int, rows: ByteArray) -> None:
        """Takes rows [planes, tokens, row_bytes], in host memory, as those of the tokens from `start`."""
        ...


@runtime_checkable
class WholeState(Protocol):
    """A recurrent state, which can be copied out and in as a whole: it cannot be cut by tokens."""

    num_bytes: int

    def save(self, into: ByteArray) -> None:
        """Fills into [num_bytes], in host memory, with the state after the last token."""
        ...

    def load(self, kept: ByteArray) -> None:
        """Takes what `save` has given."""
        ...


class SharedRows(Protocol):
    """The memory of all rows of a sequence, which it shares with others that begin alike."""

    shares: bool  # whether what it begins with takes no memory of its own

    def begin_as(self, other: SharedRows, tokens: int) -> bool:
        """Takes the first tokens of another sequence, and forgets its own; False, and nothing is done, where these must
        be copied."""
        ...

    def write_from(self, tokens: int) -> None:
        """Called before it goes on behind so many tokens, where it had more and others may begin as it did. What was
        added since, and cut off again, needs no such call."""
        ...

    def trim(self, tokens: int) -> None:
        """Gives back the memory that it does not need for so many tokens, all that it has."""
        ...


class OwnRows:
    """As SharedRows, where rows lie in memory of their own: they are copied."""

    shares = False

    def begin_as(self, other: SharedRows, tokens: int) -> bool:
        return False

    def write_from(self, tokens: int) -> None:
        pass

    def trim(self, tokens: int) -> None:
        pass


class Cache:
    """The states of one sequence, with room for `capacity` tokens."""

    beams = 1  # sequences that a pass goes on with side by side

    def __init__(
        self, states: Sequence[LayerState], capacity: int, limits: Sequence[int] = (), shared: SharedRows | None = None
    ) -> None:
        """limits: beyond which lengths a sequence has other positions (rope.py). shared: the memory of all its rows,
        where others may have it, too."""
        self.states: list[Any] = list(states)  # by decoder layer; whoever made the layer knows what its state is
        self.capacity = capacity
        self._limits, self.shared = limits, shared or OwnRows()
        self.reach = 0  # tokens of the sequence, with those of its prompt that are still to come: by it they are turned
        self.length = 0  # tokens that every layer has stored
        self.pictures: Sequence[SoftTokens] = ()  # of the sequence, in order
        self.tried = 0  # tokens of the last pass, if they were tried
        # Is told of every pass, on the CPU: how many tokens were there before it, and what the head is given of each of
        # its tokens [tokens, hidden_size].
        self.on_hidden: Callable[[int, Any], None] | None = None
        # Likewise, of each layer: its number, and the state behind it [tokens, width], which the next one changes.
        self.on_layer: Callable[[int, int, Any], None] | None = None
        self._rows: list[RowState] = [state for state in states if isinstance(state, RowState)]
        self._whole: list[WholeState] = [state for state in states if isinstance(state, WholeState)]

    @property
    def positions(self) -> int:
        """Which kind of positions the sequence has: a number from 0 on."""
        return _kind(self._limits, self.reach)

    def outgrown(self, length: int) -> bool:
        """Whether what it holds is of no use to a sequence of so many tokens, whose positions are others."""
        return self.length > 0 and _kind(self._limits, length) != self.positions

    def advance(self, num_tokens: int) -> None:
        """Counts the tokens behind `length`, which every layer has stored."""
        assert self.length + num_tokens <= self.capacity, "the caller checks the context before a forward pass"
        self.length += num_tokens

    def commit(self, num_tokens: int) -> None:
        """Called at the end of a pass, as its last work on the device: every layer has stored its tokens. Of one whose
        tokens are tried it is called later, by whoever knows how many of them are right, or not at all.

        They are counted first. Where an error or an interrupt then keeps the caller from noting them, the length tells
        that recurrent states have seen more than it knows of.
        """
        self.advance(num_tokens)
        for state in self.states:
            if not state.rewinds:
                state.commit(num_tokens)

    @property
    def rewinds(self) -> bool:
        """Whether the cache can go back to any of its tokens."""
        return all(state.rewinds for state in self.states)

    def truncate(self, length: int) -> int:
        """Forgets all but the first `length` tokens, or all where a state cannot go back; how many are left."""
        assert 0 <= length <= self.length
        if length < self.length and not self.rewinds:
            length = 0
        if length < self.length:
            for state in self.states:
                state.truncate(length)
        self.length = length
        return length

    def begin_as(self, other: Cache, length: int) -> None:
        """Holds the first `length` tokens of another sequence afterwards, and no longer its own. Both can go back, and
        have positions of one kind."""
        assert self.rewinds and self.positions == other.positions and length <= other.length
        self.truncate(0)
        if not self.shared.begin_as(other.shared, length):
            self.shared.write_from(0)
            for start in range(0, length, COPIED_TOKENS):
                end = min(start + COPIED_TOKENS, length)
                self.load_rows(start, other.save_rows(start, end), end - start, 0, end - start)
        self.resume(length, None)

    # What is copied out and in: of decoders alone, whose states are all rows or whole ones.

    @property
    def layout(self) -> list[list[int]]:
        """Planes and bytes of a row of each state that is kept by tokens; bytes of each that is kept as a whole."""
        assert len(self._rows) + len(self._whole) == len(self.states), "a state that cannot be copied"
        return [[state.planes, state.row_bytes] for state in self._rows] + [[state.num_bytes] for state in self._whole]

    @property
    def token_bytes(self) -> int:
        """What a token takes in the states that are kept by tokens."""
        return sum(state.planes * state.row_bytes for state in self._rows)

    @property
    def state_bytes(self) -> int:
        """What the recurrent states take; 0 where there are none."""
        return sum(state.num_bytes for state in self._whole)

    def save_rows(self, start: int, end: int) -> ByteArray:
        """A copy of the rows of tokens start to end, [(end - start) * token_bytes]: one state behind another."""
        kept: ByteArray = np.empty((end - start) * self.token_bytes, np.uint8)
        for state, part in zip(self._rows, _cut(self._rows, kept, end - start), strict=True):
            state.save_rows(start, part)
        return kept

    def load_rows(self, start: int, kept: ByteArray, num_tokens: int, first: int, last: int) -> None:
        """Takes the tokens first to last of `kept`, which holds num_tokens as the tokens from `start`.

        They do not count before `resume`.
        """
        for state, part in zip(self._rows, _cut(self._rows, kept, num_tokens), strict=True):
            state.load_rows(start + first, part[:, first:last])

    def save_state(self) -> ByteArray:
        """A copy of the recurrent states after the last token, [state_bytes]."""
        kept: ByteArray = np.empty(self.state_bytes, np.uint8)
        at = 0
        for state in self._whole:
            state.save(kept[at : at + state.num_bytes])
            at += state.num_bytes
        return kept

    def resume(self, length: int, kept: ByteArray | None) -> None:
        """Goes on behind `length` tokens, whose rows are there. kept: recurrent states after them, where there are."""
        assert length <= self.capacity and (kept is not None or self.rewinds)
        self.length = length  # first, as in `commit`
        at = 0
        for state in self._whole:
            assert kept is not None
            state.load(kept[at : at + state.num_bytes])
            at += state.num_bytes


def _cut(states: Sequence[RowState], kept: ByteArray, num_tokens: int) -> list[ByteArray]:
    """The part of each state that is kept by tokens, [planes, num_tokens, row_bytes]."""
    parts, at = [], 0
    for state in states:
        size = state.planes * num_tokens * state.row_bytes
        parts.append(kept[at : at + size].reshape(state.planes, num_tokens, state.row_bytes))
        at += size
    return parts


def _kind(limits: Sequence[int], length: int) -> int:
    return sum(length > limit for limit in limits)


def begin_pass(cache: Cache, tried: int) -> None:
    """tried: how many tokens the next pass has, of which `commit` is told later how many count; 0: it has no such."""
    if tried or cache.tried:
        cache.tried = tried
        for state in cache.states:
            if not state.rewinds:
                state.try_rows(tried)


class NewTokens(NamedTuple):
    """Tokens that follow what the cache of a sequence holds."""

    ids: Sequence[int]
    cache: Cache
    of_tokens: int = 0  # of the pass that they are a part of, as a prompt goes in chunks; 0: they are all of it
    tried: bool = False  # some may be wrong: each has its row of logits, and the cache counts none before its `commit`


P_co = TypeVar("P_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Span(Generic[P_co]):
    """The rows of a pass that go on with one sequence, behind what its cache holds.

    positions: of these rows, as LayersOf.rotary gives them.
    """

    rows: slice
    cache: Cache
    positions: P_co

    @property
    def num_rows(self) -> int:
        return self.rows.stop - self.rows.start  # type: ignore[no-any-return]


class OneByOne(ABC, Generic[A, P_co]):
    """What of moeinf.models.layers.protocol.Attention computes the rows of each sequence by themselves."""

    def add_rows(self, x: A, spans: Sequence[Span[P_co]]) -> None:
        if len(spans) == 1:
            self.add_to(x, spans[0].cache, spans[0].positions)
            return
        for span in spans:
            self.add_to(x[span.rows], span.cache, span.positions)

    @abstractmethod
    def add_to(self, x: A, cache: Cache, positions: P_co) -> None:  # type: ignore[misc]
        """As AttentionOf.add_rows, where all rows are of one sequence."""
