"""Prefill and decode of one sequence: tokens in, tokens out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from moeinf.types import Float32Array


class Cache(Protocol):
    length: int
    capacity: int

    def truncate(self, length: int) -> int: ...  # how many tokens are left: fewer where a state cannot go back


class LanguageModel(Protocol):
    def forward(
        self, ids: Sequence[int], cache: Cache, between_layers: Callable[[], None], *, of_tokens: int = 0
    ) -> Float32Array: ...


class Chooser(Protocol):
    """A sampler, or a text to follow."""

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int: ...


class Forced:
    """Chooses the tokens of a given text, whatever the logits say."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = iter(tokens)

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        return next(self._tokens, 0)


class Interrupted(Exception):
    """should_stop said so in the middle of a forward pass; the cache still ends where the pass began."""


@dataclass(slots=True)
class Timing:
    """Filled while the loop runs."""

    cached_tokens: int = 0  # of the prompt, reused
    encode_s: float = 0.0  # of a source, before what follows
    prefill_s: float = 0.0
    token_s: list[float] = field(default_factory=list)  # each decode step: forward pass and sampling


@dataclass(slots=True)
class CachedTokens:
    """The tokens whose keys and values a cache holds, so that the next prompt reuses its common beginning."""

    cache: Cache
    tokens: list[int] = field(default_factory=list)

    def forget(self) -> None:
        self.cache.truncate(0)
        self.tokens.clear()

    def rewind_to(self, prompt: Sequence[int]) -> int:
        """Keeps what `prompt` shares with the cache, at least one token short of it; returns how many tokens."""
        limit = min(len(self.tokens), len(prompt) - 1)
        common = next((i for i in range(limit) if self.tokens[i] != prompt[i]), limit)
        common = self.cache.truncate(common)
        del self.tokens[common:]
        return common


def generate(
    model: LanguageModel,
    sequence: CachedTokens,
    prompt: Sequence[int],
    sampler: Chooser,
    *,
    max_tokens: int,
    chunk: int,
    timing: Timing,
    should_stop: Callable[[], bool],
    on_phase: Callable[[Literal["prefill", "decode"]], None],
    on_prefill: Callable[[int, int], None],
) -> Iterator[int]:
    """Yields tokens until `max_tokens`, a full cache, or should_stop; the caller ends it at an end-of-sequence token.

    prompt: at least one token, and room for one more in the cache (the caller checks). on_prefill(done, total)
    is called after each chunk. Raises Interrupted only inside; what was generated before it stays valid.
    """

    def check() -> None:
        if should_stop():
            raise Interrupted

    try:
        started = time.perf_counter()
        on_phase("prefill")
        reused = sequence.rewind_to(prompt)
        timing.cached_tokens, logits = reused, None
        for start in range(reused, len(prompt), chunk):
            check()
            logits = _forward(model, sequence, prompt[start : start + chunk], check, len(prompt))
            on_prefill(min(start + chunk, len(prompt)), len(prompt))
        assert logits is not None, "rewind_to leaves at least one token to run"
        if max_tokens < 1:
            timing.prefill_s = time.perf_counter() - started
            return
        history = list(prompt)
        token = sampler.sample(logits[-1], history)
        timing.prefill_s = time.perf_counter() - started
        yield token
        on_phase("decode")
        for _ in range(min(max_tokens - 1, sequence.cache.capacity - len(prompt))):
            check()
            started = time.perf_counter()
            history.append(token)
            token = sampler.sample(_forward(model, sequence, [token], check)[-1], history)
            timing.token_s.append(time.perf_counter() - started)
            yield token
    except Interrupted:
        return


def _forward(
    model: LanguageModel, sequence: CachedTokens, tokens: Sequence[int], check: Callable[[], None], of_tokens: int = 0
) -> Float32Array:
    logits = model.forward(tokens, sequence.cache, check, of_tokens=of_tokens)
    sequence.tokens += tokens
    return logits
