"""Runs prefill and decode of one sequence: token ids in, token ids out."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from moeinf.errors import OutOfMemoryError
from moeinf.models.layers.decoder import FEW_ROWS, rounded_alike
from moeinf.models.layers.kv_cache import SharedRows
from moeinf.models.layers.soft_tokens import SoftTokens
from moeinf.sampling.room import RESERVE_TOKENS, Claim, Paused, Room
from moeinf.sampling.speculation.depth import Speculation
from moeinf.sampling.speculation.drafts import NOTHING
from moeinf.sampling.step_queue import GaveWay, Interrupted, Seat
from moeinf.types import Float32Array, Phase


class KvCache(Protocol):
    """What a network keeps of the tokens it has seen."""

    length: int
    capacity: int
    reach: int  # tokens of the sequence, with those of its prompt that are still to come
    pictures: Sequence[SoftTokens]  # of the sequence, in order
    shared: SharedRows  # the memory of its rows

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


class Chooser(Protocol):
    """A sampler, or a text to follow."""

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int: ...


class Forced:
    """Chooses the tokens of a given text, whatever the logits say."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = iter(tokens)

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        return next(self._tokens, 0)


@dataclass(slots=True)
class Timing:
    """What the steps of a request took, filled while it runs."""

    cached_tokens: int = 0  # of the prompt, reused
    cached_from: Source = ""
    encode_s: float = 0.0  # the encoder's pass
    prefill_s: float = 0.0
    token_s: list[float] = field(default_factory=list)  # each decode step: forward pass and sampling


class Monitor(Protocol):
    """Watches one request while it runs, and may stop it."""

    timing: Timing

    def check(self) -> None:
        """Called between layers. Raises Interrupted where the request is to stop."""
        ...

    def begin(self, phase: Phase) -> None:
        """Called when a phase of the request begins."""
        ...

    def prefilled(self, done: int, total: int) -> None:
        """Called after each chunk of a prompt, with the tokens that are done and all of them."""
        ...


@dataclass(slots=True)
class CachedTokens:
    """The tokens whose keys and values a cache holds, so that the next prompt reuses its common beginning.

    prefixes: where sequences are kept that had to leave the cache; None: nowhere.
    exact: whether no more is reused than what has the bits that the prompt itself would give: of prompts, as many as
    are rounded alike (docs/contributing/numerics.md), and not of answers.
    """

    cache: KvCache
    prefixes: Prefixes | None = None
    tokens: list[int] = field(default_factory=list)
    whole_pictures: bool = False  # whether no chunk may end within a picture, whose tokens have ids below 0
    exact: bool = False
    prompt_length: int = 0  # of the last prompt
    reading: Sequence[int] = ()  # the prompt whose tokens it is being given
    all: Callable[[], Sequence[CachedTokens]] = tuple  # the sequences of the model
    room: Room | None = None  # the memory of all; None: each has its own
    claim: Claim = field(default_factory=Claim)

    def begins_with(self, prompt: Sequence[int]) -> int:
        """How many tokens it and a prompt have in common, at their beginnings."""
        return self._common(self.tokens, prompt)

    def _common(self, tokens: Sequence[int], prompt: Sequence[int]) -> int:
        """The same of its tokens, or of those that it is being given."""
        limit = min(len(tokens), len(prompt))
        if self.exact:
            limit = min(limit, self.prompt_length) if rounded_alike(self.prompt_length, len(prompt)) else 0
        return next((i for i in range(limit) if tokens[i] != prompt[i]), limit)

    def awaited(self, prompt: Sequence[int]) -> tuple[CachedTokens, int] | None:
        """A sequence that is being given what the prompt begins with, more than any has of it so far, and the tokens
        that it is to have before this one goes on."""
        others = [each for each in self.all() if each is not self]
        held = max([each.begins_with(prompt) for each in (self, *others)])
        for each in others:
            coming = min(each._common(each.reading, prompt), len(prompt) - 1)
            if not self.cache.rewinds:  # it goes on where a state was kept
                coming = max((border for border in each.borders(each.reading) if border <= coming), default=0)
            if coming >= held + WORTH_TOKENS:
                return each, coming
        return None

    def given(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt take no memory of their own."""
        found = [self.begins_with(prompt)]
        if self.cache.rewinds and self.cache.shared.shares:
            found += [each.begins_with(prompt) for each in self.all()]
            found += [tokens for _, tokens in filter(None, [self.awaited(prompt)])]
        return max(found)

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

    def rewind_to(self, prompt: Sequence[int]) -> tuple[int, Source]:
        """Keeps or fetches what is known of `prompt` but for its last token; how many tokens, and where from."""
        common = min(self.begins_with(prompt), len(prompt) - 1)
        tokens, self.tokens = self.tokens, []  # of a cache that is changed until the end of this
        self.prompt_length = len(prompt)
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


def generate(
    seat: Seat,
    sequence: CachedTokens,
    prompt: Sequence[int],
    chooser: Chooser,
    monitor: Monitor,
    *,
    max_tokens: int,
    chunk: int,
    speculation: Speculation | None = None,
) -> Generator[int | None, None, None]:
    """Yields tokens until `max_tokens`, a full cache, or an interrupt; the caller ends it at an end-of-sequence token.

    Yields None where it waits for a step (step_queue.py). prompt: at least one token, and room for one more in the
    cache (the caller checks); it goes in chunks of at most `chunk` tokens. Interrupted is raised only inside; what was
    generated before it stays valid. speculation: guesses at tokens, which a step takes along; each is a token of the
    answer if the chooser draws it, from the logits that it would have been given anyway.
    """
    try:
        started = time.perf_counter()
        monitor.begin("prefill")
        logits, base = (yield from _read(seat, sequence, prompt, monitor, chunk, max_tokens)), len(prompt)
        if max_tokens < 1:
            monitor.timing.prefill_s = time.perf_counter() - started
            return
        history = [token for token in prompt if token >= 0]  # without pictures
        token = chooser.sample(logits[-1], history)
        monitor.timing.prefill_s = time.perf_counter() - started
        yield token
        monitor.begin("decode")
        left = min(max_tokens - 1, sequence.cache.capacity - len(prompt))
        while left > 0:
            monitor.check()
            started = time.perf_counter()
            try:
                yield from _with_room(seat, sequence, monitor)
            except Paused:
                yield from _resumed(seat, sequence, base, monitor, chunk)
            history.append(token)
            guess = NOTHING if speculation is None else speculation.draft(history, _room(seat, sequence, left))
            if sequence.cache.outgrown(len(sequence.tokens) + 1):
                logits = yield from _computed(seat, sequence, [*sequence.tokens, token], monitor, chunk)
                base = len(sequence.tokens)
            else:
                logits = yield from seat.through(
                    [token, *guess.ids], sequence.cache, monitor.check, tried=bool(guess.ids)
                )
                if not guess.ids:
                    sequence.tokens.append(token)
                    if speculation is not None:
                        speculation.single(seat.last_step)
            fed, right, step = token, 0, seat.last_step
            try:
                for row, expected in zip(logits, (*guess.ids, None), strict=True):
                    token = chooser.sample(row, history)
                    right, left = right + 1, left - 1
                    monitor.timing.token_s.append(time.perf_counter() - started)
                    yield token
                    if token != expected:
                        break
                    started = time.perf_counter()
                    history.append(token)
            finally:
                if guess.ids and right and speculation is not None:
                    sequence.cache.commit(right)
                    sequence.tokens += [fed, *guess.ids[: right - 1]]
                    speculation.tried(guess, right - 1, step)
    except Interrupted:
        return
    finally:
        if speculation is not None:
            speculation.close()


def _read(
    seat: Seat, sequence: CachedTokens, prompt: Sequence[int], monitor: Monitor, chunk: int, max_tokens: int
) -> Generator[None, None, Float32Array]:
    """Reads a prompt once there is room for it; returns the logits of its last token."""
    while True:
        yield from _admitted(seat, sequence, prompt, monitor, max_tokens)
        yield from _awaiting(seat, sequence, prompt, monitor)
        try:
            return (yield from _computed(seat, sequence, prompt, monitor, chunk, monitor.timing))
        except Paused:
            sequence.give_up()


def _resumed(
    seat: Seat, sequence: CachedTokens, base: int, monitor: Monitor, chunk: int
) -> Generator[None, None, None]:
    """Pauses an answer, and computes its tokens as they were computed: the first `base` as a prompt, others singly."""
    tokens = list(sequence.tokens)
    while True:
        sequence.give_up()
        yield from _admitted(seat, sequence, tokens, monitor, RESERVE_TOKENS)
        try:
            yield from _computed(seat, sequence, tokens[:base], monitor, chunk, pauses=True)
            for token in tokens[base:]:
                _heed(sequence)
                yield from seat.through([token], sequence.cache, monitor.check)
                sequence.tokens.append(token)
            return
        except Paused:
            continue


def _heed(sequence: CachedTokens) -> None:
    if sequence.claim.paused:
        raise Paused


def _admitted(
    seat: Seat, sequence: CachedTokens, prompt: Sequence[int], monitor: Monitor, max_tokens: int
) -> Generator[None, None, None]:
    """Waits until there is room for a prompt and the beginning of its answer. Raises OutOfMemoryError."""
    room = sequence.room
    if room is None:
        return
    sequence.claim.background = seat.asker.background
    tokens = min(len(prompt) + min(max_tokens, RESERVE_TOKENS), sequence.cache.capacity)
    while not room.begins(sequence, tokens, lambda: sequence.given(prompt)):
        yield from _one_step(seat, monitor)


def _with_room(seat: Seat, sequence: CachedTokens, monitor: Monitor) -> Generator[None, None, None]:
    """Waits until there is room for the tokens of a step. Raises Paused, OutOfMemoryError."""
    room = sequence.room
    most = sequence.cache.capacity
    while room is not None and not room.grows(sequence, len(sequence.tokens) + FEW_ROWS, most):
        yield from _one_step(seat, monitor)


def _one_step(seat: Seat, monitor: Monitor) -> Generator[None, None, None]:
    monitor.check()
    if seat.makes_steps:  # nobody takes the others on
        raise OutOfMemoryError(
            "the memory of keys and values is held by other answers that are open; read those to their ends, or close "
            "them"
        )
    yield None


def _room(seat: Seat, sequence: CachedTokens, left: int) -> int:
    """How many guesses a step has room for: of the tokens that may still come, and of those that keep the positions."""
    most = min(left, seat.most_rows) - 1
    while most > 0 and sequence.cache.outgrown(len(sequence.tokens) + 1 + most):
        most -= 1
    return most


def _computed(
    seat: Seat,
    sequence: CachedTokens,
    prompt: Sequence[int],
    monitor: Monitor,
    chunk: int,
    timing: Timing | None = None,
    *,
    pauses: bool = False,
) -> Generator[None, None, Float32Array]:
    """Runs what the cache lacks of a prompt, or of an answer behind it; returns the logits of the last token.

    timing: where to say what was reused, of a prompt that is read first. pauses: whether Paused may be raised, as then.
    """
    start, source = sequence.rewind_to(prompt)
    if timing is not None:
        timing.cached_tokens, timing.cached_from = start, source
    logits, borders, sequence.reading = None, sequence.borders(prompt), prompt
    try:
        while start < len(prompt):
            monitor.check()
            if pauses or timing is not None:
                _heed(sequence)
            end = sequence.end_of_chunk(prompt, start, seat.piece(chunk), borders)
            tokens = prompt[start:end]
            try:
                logits = yield from seat.through(tokens, sequence.cache, monitor.check, of_tokens=len(prompt))
            except GaveWay:
                continue
            sequence.tokens += tokens
            if end in borders:
                sequence.keep()
            monitor.prefilled(end, len(prompt))
            start = end
    finally:
        sequence.reading = ()
    assert logits is not None, "rewind_to leaves at least one token to run"
    return logits


def _awaiting(
    seat: Seat, sequence: CachedTokens, prompt: Sequence[int], monitor: Monitor
) -> Generator[None, None, None]:
    """Waits while another sequence is given what the prompt begins with, so that it is computed once."""
    awaited = None if seat.makes_steps else sequence.awaited(prompt)
    if awaited is None:
        return
    other, tokens = awaited
    reading = other.reading
    while other.reading is reading and len(other.tokens) < tokens and not sequence.claim.paused:
        monitor.check()
        yield None
