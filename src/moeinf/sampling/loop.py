"""Runs prefill and decode of one sequence: token ids in, token ids out."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moeinf.errors import OutOfMemoryError
from moeinf.models.layers.decoder import FEW_ROWS
from moeinf.sampling.cached_tokens import CachedTokens, Source
from moeinf.sampling.room import RESERVE_TOKENS, Paused
from moeinf.sampling.speculation.depth import Speculation
from moeinf.sampling.speculation.drafts import NOTHING, Guess
from moeinf.sampling.step_queue import GaveWay, Interrupted, Seat
from moeinf.types import Float32Array, Phase


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

    def gives_way(self) -> bool:
        """Asked where the request may be left alone: whether it is to give up its sequence, for another one that comes
        before it, until this says False."""
        ...

    def begin(self, phase: Phase) -> None:
        """Called when a phase of the request begins."""
        ...

    def reading(self, start: int, end: int, total: int) -> None:
        """Called before each chunk of a prompt: from which token on it is read, to which, and of how many."""
        ...

    def prefilled(self, done: int, total: int) -> None:
        """Called after each chunk of a prompt, with the tokens that are done and all of them."""
        ...


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
    answer = _Answer(seat, sequence, monitor, chooser, chunk, speculation)
    try:
        yield from answer.tokens(prompt, max_tokens)
    except Interrupted:
        return
    finally:
        if speculation is not None:
            speculation.close()


@dataclass(slots=True)
class _Answer:
    """An answer that is being made."""

    seat: Seat
    sequence: CachedTokens
    monitor: Monitor
    chooser: Chooser
    chunk: int
    speculation: Speculation | None
    read: int = 0  # tokens, from the first on, that were computed in chunks; those behind are computed singly
    history: list[int] = field(default_factory=list)  # the prompt without its pictures, and the answer

    def tokens(self, prompt: Sequence[int], max_tokens: int) -> Generator[int | None, None, None]:
        monitor, sequence, started = self.monitor, self.sequence, time.perf_counter()
        monitor.begin("prefill")
        logits = yield from self._prefill(prompt, max_tokens)
        if max_tokens < 1:
            monitor.timing.prefill_s = time.perf_counter() - started
            return
        self.history += [token for token in prompt if token >= 0]
        token = self.chooser.sample(logits[-1], self.history)
        monitor.timing.prefill_s = time.perf_counter() - started
        yield token
        monitor.begin("decode")
        left = min(max_tokens - 1, sequence.cache.capacity - len(prompt))
        while left > 0:
            monitor.check()
            started = time.perf_counter()
            yield from self._with_room()
            self.history.append(token)
            guess = NOTHING
            if self.speculation is not None:
                guess = self.speculation.draft(self.history, self._most_guesses(left))
            logits = yield from self._step(token, guess)
            token, drawn = yield from self._draw(logits, guess, started)
            left -= drawn

    def _step(self, token: int, guess: Guess) -> Generator[None, None, Float32Array]:
        """Returns the logits [1 + guesses, vocab] behind a token and each guess; those are not noted yet."""
        sequence = self.sequence
        if sequence.cache.outgrown(len(sequence.tokens) + 1):
            self.read = len(sequence.tokens) + 1
            return (yield from self._computed([*sequence.tokens, token]))
        logits = yield from self.seat.through(
            [token, *guess.ids], sequence.cache, self.monitor.check, tried=bool(guess.ids)
        )
        if not guess.ids:
            sequence.tokens.append(token)
            if self.speculation is not None:
                self.speculation.single(self.seat.last_step)
        return logits

    def _draw(self, logits: Float32Array, guess: Guess, started: float) -> Generator[int, None, tuple[int, int]]:
        """Yields the tokens that are drawn at the rows of a step, up to the first that was not guessed; returns that
        one, and how many there are. Guesses that were right are noted, whenever it ends."""
        fed, step, token, drawn = self.history[-1], self.seat.last_step, 0, 0
        try:
            for row, expected in zip(logits, (*guess.ids, None), strict=True):
                token = self.chooser.sample(row, self.history)
                drawn += 1
                self.monitor.timing.token_s.append(time.perf_counter() - started)
                yield token
                if token != expected:
                    break
                started = time.perf_counter()
                self.history.append(token)
        finally:
            if guess.ids and drawn and self.speculation is not None:
                self.sequence.cache.commit(drawn)
                self.sequence.tokens += [fed, *guess.ids[: drawn - 1]]
                self.speculation.tried(guess, drawn - 1, step)
        return token, drawn

    def _most_guesses(self, left: int) -> int:
        """How many guesses a step takes: of the tokens that may still come, and of those that keep the positions."""
        most, sequence = min(left, self.seat.most_rows) - 1, self.sequence
        while most > 0 and sequence.cache.outgrown(len(sequence.tokens) + 1 + most):
            most -= 1
        return most

    # Of memory, which all sequences share (room.py), and of the place, which others may need more.

    def _prefill(self, prompt: Sequence[int], max_tokens: int) -> Generator[None, None, Float32Array]:
        """Reads a prompt once there is room for it; returns the logits of its last token."""
        self.read = len(prompt)
        while True:
            yield from self._admitted(prompt, max_tokens)
            yield from self._awaiting(prompt)
            try:
                return (yield from self._computed(prompt, self.monitor.timing, pauses=True))
            except Paused:
                self.sequence.give_up()

    def _with_room(self) -> Generator[None, None, None]:
        """Waits until there is room for the tokens of a step; an answer that is paused then goes on. Raises
        OutOfMemoryError."""
        sequence, room = self.sequence, self.sequence.room
        try:
            self._heed()
            while room is not None and not room.grows(
                sequence, len(sequence.tokens) + FEW_ROWS, sequence.cache.capacity
            ):
                yield from self._one_step()
                self._heed()
        except Paused:
            yield from self._resumed()

    def _resumed(self) -> Generator[None, None, None]:
        """Pauses an answer, and computes its tokens as they were computed: some in chunks, others singly."""
        sequence, tokens = self.sequence, list(self.sequence.tokens)
        while True:
            sequence.give_up()
            yield from self._admitted(tokens, RESERVE_TOKENS)
            try:
                yield from self._computed(tokens[: self.read], pauses=True)
                for token in tokens[self.read :]:
                    self._heed()
                    yield from self.seat.through([token], sequence.cache, self.monitor.check)
                    sequence.tokens.append(token)
                return
            except Paused:
                continue

    def _admitted(self, prompt: Sequence[int], max_tokens: int) -> Generator[None, None, None]:
        """Waits until nobody else needs its place more, and there is room for a prompt and the beginning of its answer.
        Raises OutOfMemoryError."""
        sequence, room = self.sequence, self.sequence.room
        while True:
            if self.monitor.gives_way():
                yield from self._aside(prompt)
            sequence.claim.background = self.seat.asker.background
            tokens = min(len(prompt) + min(max_tokens, RESERVE_TOKENS), sequence.cache.capacity)
            if room is None or room.begins(sequence, tokens, lambda: sequence.given(prompt)):
                return
            yield from self._one_step()

    def _aside(self, prompt: Sequence[int]) -> Generator[None, None, None]:
        """Leaves its sequence and its seat to another answer, and takes others once it may go on."""
        self.seat.leave()
        come_back = self.sequence.lend(self.sequence)
        while self.monitor.gives_way():
            self.monitor.check()
            yield None
        come_back(prompt)
        self.seat.come_back()

    def _heed(self) -> None:
        """Raises Paused where the answer is to give up its memory, or its place."""
        if self.sequence.claim.paused or self.monitor.gives_way():
            raise Paused

    def _one_step(self) -> Generator[None, None, None]:
        self.monitor.check()
        if self.seat.makes_steps:  # nobody takes the others on
            raise OutOfMemoryError(
                "the memory of keys and values is held by other answers that are open; read those to their ends, or "
                "close them"
            )
        yield None

    # Of prompts, and of answers that are computed anew.

    def _computed(
        self, prompt: Sequence[int], timing: Timing | None = None, *, pauses: bool = False
    ) -> Generator[None, None, Float32Array]:
        """Runs what the cache lacks of a prompt, or of an answer behind it; returns the logits of the last token.

        timing: where to say what was reused. pauses: whether Paused may be raised.
        """
        seat, sequence, monitor = self.seat, self.sequence, self.monitor
        start, source = sequence.rewind_to(prompt)
        if timing is not None:
            timing.cached_tokens, timing.cached_from = start, source
        logits, borders, sequence.reading = None, sequence.borders(prompt), prompt
        unless = monitor.gives_way if pauses else None
        try:
            while start < len(prompt):
                monitor.check()
                if pauses:
                    self._heed()
                end = sequence.end_of_chunk(prompt, start, seat.piece(self.chunk), borders)
                tokens = prompt[start:end]
                monitor.reading(start, end, len(prompt))
                try:
                    logits = yield from seat.through(
                        tokens, sequence.cache, monitor.check, of_tokens=len(prompt), unless=unless
                    )
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

    def _awaiting(self, prompt: Sequence[int]) -> Generator[None, None, None]:
        """Waits while another sequence is given what the prompt begins with, so that it is computed once."""
        sequence = self.sequence
        awaited = None if self.seat.makes_steps else sequence.awaited(prompt)
        if awaited is None:
            return
        other, tokens = awaited
        reading = other.reading
        while other.reading is reading and len(other.tokens) < tokens:
            if sequence.claim.paused or self.monitor.gives_way():
                return
            self.monitor.check()
            yield None
