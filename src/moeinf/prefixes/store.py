"""What a model kept of earlier prompts, in memory and on disk: found, loaded into its cache, and kept in turn."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from moeinf.prefixes.block import (
    BLOCK_TOKENS,
    Block,
    Entry,
    Source,
    Step,
    TokenArray,
    digest_of,
    next_entry,
    token_array,
)
from moeinf.prefixes.disk import DiskBlock, DiskTier
from moeinf.prefixes.memory import MemoryTier
from moeinf.prefixes.sequence_cache import SequenceCache
from moeinf.prefixes.writer import Writer
from moeinf.types import ByteArray

FLUSH_S: Final = 20.0  # what closing a model waits for the disk at most
SHORT_TOKENS: Final = 64  # a prompt of so many or fewer is soon computed, and rounded unlike longer ones (numerics.md)
WORTH_TOKENS: Final = 64  # that a cache may lose without their being kept
LEAST_STATES: Final = 3  # recurrent states that one sequence may have kept in any case: its first, and the last two
STATE_SHARE: Final = 4  # beyond these, the states of one sequence take a quarter of the memory at most

Borders = Callable[[Sequence[int]], list[int]]  # of a prompt: after how many tokens a recurrent state is worth keeping


Given = ParamSpec("Given")
Result = TypeVar("Result")


def _alone(
    method: Callable[Concatenate[PrefixStore, Given], Result],
) -> Callable[Concatenate[PrefixStore, Given], Result]:
    """The method, while which nothing in memory is given back."""

    def alone(self: PrefixStore, /, *given: Given.args, **named: Given.kwargs) -> Result:
        with self._in_use:
            return method(self, *given, **named)

    functools.update_wrapper(alone, method)
    return alone


class Limits(NamedTuple):
    block_tokens: int = BLOCK_TOKENS
    short_tokens: int = SHORT_TOKENS  # of prompts, sequences and beginnings that are neither looked up nor kept
    flush_s: float = FLUSH_S  # what `close` waits for the disk at most


LIMITS: Final = Limits()


class PrefixStore:
    """moeinf.sampling.cached_tokens.Prefixes over the tiers. Used from the thread of the model, but for `spare`."""

    def __init__(
        self,
        cache: SequenceCache,
        root: bytes,
        memory: MemoryTier,
        disk: DiskTier | None,
        borders: Borders,
        limits: Limits = LIMITS,
    ) -> None:
        """root: the name that first blocks follow, other for each model and whatever decides its numbers."""
        self._cache, self._name, self._disk = cache, root, disk
        self.memory = memory  # others may look how much of it is used
        self._borders, self._limits = borders, limits
        self._writer = None if disk is None else Writer(disk)
        self._in_use = threading.RLock()  # by whoever reads or changes what is in memory

    @property
    def _root(self) -> bytes:
        """What first blocks follow: sequences whose tokens are turned in another way have nothing in common.

        No block is empty: what is named behind one cannot be mistaken for a sequence of the token `positions`.
        """
        positions = self._cache.positions
        none = token_array([])
        return digest_of(digest_of(self._name, none), token_array([positions])) if positions else self._name

    def spare(self, num_bytes: int, *, lends: bool = False) -> int:
        """Gives back about so many bytes of memory, or with a negative number may take so many more again.

        From any thread; returns how many were given back: none while a prompt is looked up or kept, so ask again.
        lends: they are lent for something else, and stay away until they are taken again.
        """
        if not self._in_use.acquire(blocking=False):
            return 0
        try:
            if lends:
                return self.memory.lend(num_bytes)
            held = self.memory.used_bytes if num_bytes > 0 else self.memory.budget_bytes
            return self.memory.resize(held - num_bytes)
        finally:
            self._in_use.release()

    def borders(self, prompt: Sequence[int]) -> list[int]:
        """After how many tokens of a prompt `keep` is to be called: nowhere in a model whose cache can go back."""
        if self._cache.rewinds or len(prompt) <= self._limits.short_tokens:
            return []
        return [border for border in self._borders(prompt) if border > self._limits.short_tokens]

    @_alone
    def restore(self, prompt: Sequence[int], live: int) -> tuple[int, Source]:
        """Brings the cache to the longest known beginning of `prompt`; returns its length, and where it came from.

        prompt: but for its last token, which is computed in any case. live: how many tokens the cache and the prompt
        both begin with.
        """
        tokens = token_array(prompt)
        while True:
            way = self._find(tokens) if len(prompt) >= self._limits.short_tokens else []
            end = way[-1].end if way else 0
            intact = self._cache.rewinds or live == self._cache.length  # else only its rows are as they should be
            if end <= max(live if intact else 0, self._limits.short_tokens):
                left = self._cache.truncate(live)
                return left, "live" if left else ""
            if self._load(way, live):
                return end, _source(way, live)

    @_alone
    def keep(self, tokens: Sequence[int]) -> None:
        """Copies what the cache holds, which are these tokens, into memory, as far as there is room."""
        self._kept(token_array(tokens))

    def leave(self, tokens: Sequence[int], length: int) -> None:
        """Called when the cache, which holds these tokens, is to lose all but the first `length`: they are kept.

        Not where it loses so few that they are computed sooner than all before them is copied.
        """
        if len(tokens) - length >= min(WORTH_TOKENS, self._limits.block_tokens) or not self._cache.rewinds:
            self.keep(tokens)

    @_alone
    def settle(self, tokens: Sequence[int]) -> None:
        """Called behind an answer with all tokens of the cache: what is new is copied, and goes to the disk."""
        if self._disk is not None and self._writer is not None:
            disk = self._disk
            self._writer.submit([block for block in self._kept(token_array(tokens)) if not disk.holds(block)])

    @_alone
    def forget(self) -> None:
        """Drops what is in memory: one of the numbers was none."""
        if self._writer is not None:
            self._writer.drop()
        self.memory.clear()

    @_alone
    def close(self, tokens: Sequence[int]) -> None:
        """Writes what the cache holds, and is not on disk yet, also what memory had no room for.

        A disk that hangs is left alone after FLUSH_S: only the thread touches it.
        """
        if self._disk is None or self._writer is None:
            return
        deadline = time.monotonic() + self._limits.flush_s
        self.settle(tokens)
        self._writer.drain(deadline - time.monotonic())
        for block in () if len(tokens) <= self._limits.short_tokens else self._not_in_memory(token_array(tokens)):
            self._writer.submit([block])
            if not self._writer.drain(deadline - time.monotonic()) or self._writer.refused:
                break
        self._writer.drop()

    def _find(self, tokens: TokenArray) -> Sequence[Step]:
        """The way of a prompt through both tiers. One that has to have a recurrent state ends where there is one."""
        steps, parent, at = list[Step](), self._root, 0
        while at < len(tokens):
            rest, candidates = tokens[at:], self._candidates(parent)
            entry = next_entry(candidates, rest)
            if entry is None:
                if self._cache.rewinds and (part := _longest_part(candidates, rest)) is not None:
                    steps.append(Step(part[0], at, part[1]))
                break
            steps.append(Step(entry, at, entry.num_tokens))
            parent, at = entry.digest, at + entry.num_tokens
        while steps and not (self._cache.rewinds or steps[-1].entry.has_state):
            steps.pop()
        return steps

    def _candidates(self, parent: bytes) -> list[Entry]:
        """The blocks behind one, those in memory first."""
        in_memory: list[Entry] = list(self.memory.children(parent))
        if self._disk is None:
            return in_memory
        stateful = {entry.digest for entry in in_memory if entry.has_state or self._cache.rewinds}
        return in_memory + [entry for entry in self._disk.children(parent) if entry.digest not in stateful]

    def _load(self, way: Sequence[Step], live: int) -> bool:
        """Brings a way's tokens behind the first `live` ones into the cache; False where a file was not sound."""
        state = None
        if not self._cache.rewinds:
            state = self._state_of(way[-1].entry)
            if state is None:
                return False
        for step in way:
            if step.end > live:
                rows = self._rows_of(step.entry)
                if rows is None:
                    return False
                first = max(0, live - step.start)
                self._cache.load_rows(step.start, rows, step.entry.num_tokens, first, step.taken)
        self._cache.resume(way[-1].end, state)
        self.memory.touch(step.entry.digest for step in way)
        if self._disk is not None:
            self._disk.touch((step.entry, step.start) for step in way if isinstance(step.entry, DiskBlock))
        return True

    def _rows_of(self, entry: Entry) -> ByteArray | None:
        if isinstance(entry, Block):
            return entry.rows
        assert isinstance(entry, DiskBlock) and self._disk is not None
        return self._disk.read(entry, "rows", entry.num_tokens * self._cache.token_bytes)

    def _state_of(self, entry: Entry) -> ByteArray | None:
        if isinstance(entry, Block):
            return entry.state
        assert isinstance(entry, DiskBlock) and self._disk is not None
        return self._disk.read(entry, "state", self._cache.state_bytes)

    def _kept(self, tokens: TokenArray) -> list[Block]:
        """The blocks of what the cache holds that are in memory, from the first token on, made where they were not.

        A pass that was given up at its end may have left a recurrent state of further tokens, which is not theirs.
        """
        if len(tokens) <= self._limits.short_tokens:
            return []
        blocks = list(self._known(tokens))
        way = {block.digest for block in blocks}
        self.memory.touch(block.digest for block in blocks)
        at = sum(block.num_tokens for block in blocks)
        while at < len(tokens):
            parent, rest = blocks[-1].digest if blocks else self._root, tokens[at:]
            block = next_entry(self.memory.children(parent), rest)  # that was pending when the one before it left
            if not isinstance(block, Block):
                part = rest[: self._limits.block_tokens]
                if not self.memory.make_room(len(part) * self._cache.token_bytes + part.nbytes, way):
                    return blocks
                block = self._copied(parent, at, part)
                self.memory.add(block)
            blocks.append(block)
            way.add(block.digest)
            at += block.num_tokens
        if blocks and not self._cache.rewinds and len(tokens) == self._cache.length:
            self._keep_state(blocks, way)
        self.memory.touch(block.digest for block in blocks)
        return blocks

    def _known(self, tokens: TokenArray) -> Iterator[Block]:
        """The blocks in memory that the tokens begin with, one behind the other."""
        parent, at = self._root, 0
        while at < len(tokens):
            entry = next_entry(self.memory.children(parent), tokens[at:])
            if not isinstance(entry, Block):
                return
            yield entry
            parent, at = entry.digest, at + entry.num_tokens

    def _keep_state(self, blocks: Sequence[Block], way: set[bytes]) -> None:
        """Gives the last block the recurrent state. Of the others' the first and the last stay, of many."""
        last, size = blocks[-1], self._cache.state_bytes
        if last.has_state:
            return
        most = max(LEAST_STATES, self.memory.budget_bytes // STATE_SHARE // max(1, size))
        stateful = [block for block in blocks if block.has_state and not block.pending]
        for block in stateful[1 : max(1, len(stateful) + 2 - most)]:
            self.memory.set_state(block, None)
        if self.memory.make_room(size, way):
            self.memory.set_state(last, self._cache.save_state())

    def _copied(self, parent: bytes, start: int, tokens: TokenArray) -> Block:
        rows = self._cache.save_rows(start, start + len(tokens))
        return Block(parent, digest_of(parent, tokens), start, tokens.copy(), rows)

    def _not_in_memory(self, tokens: TokenArray) -> Iterator[Block]:
        """What the cache holds in blocks that are neither in memory nor on disk, copied one by one."""
        assert self._disk is not None
        parent, at = self._root, 0
        for block in self._known(tokens):
            parent, at = block.digest, at + block.num_tokens
        while (entry := next_entry(self._disk.children(parent), tokens[at:])) is not None:
            parent, at = entry.digest, at + entry.num_tokens
        while at < len(tokens):
            part = tokens[at : at + self._limits.block_tokens]
            block = self._copied(parent, at, part)
            parent, at = block.digest, at + len(part)
            if at == len(tokens) == self._cache.length and not self._cache.rewinds:
                block.state = self._cache.save_state()
            yield block


def beside(store: PrefixStore, cache: SequenceCache) -> PrefixStore:
    """The same store for the cache of another sequence; used from the same thread."""
    other = copy(store)
    other._cache = cache
    return other


def _source(way: Sequence[Step], live: int) -> Source:
    """Where the farthest of what was loaded lay: all behind the first `live` tokens, and the last step's state."""
    loaded = [step.entry for step in way if step.end > live or step is way[-1]]
    return "disk" if any(isinstance(entry, DiskBlock) for entry in loaded) else "memory"


def _longest_part(candidates: Sequence[Entry], tokens: TokenArray) -> tuple[Entry, int] | None:
    """The candidate that has most tokens in common with a prompt, and how many; None where none has any."""
    parts = [(entry, common) for entry in candidates if (common := entry.common(tokens))]
    return max(parts, key=lambda part: part[1], default=None)
