"""A cache whose rows and states follow from the tokens, so that a test sees whether the right ones are in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moeinf.models.layers.kv_cache import NewTokens, OwnRows, SharedRows
from moeinf.models.layers.soft_tokens import SoftTokens
from moeinf.types import ByteArray, Float32Array

ROW_BYTES, STATE_BYTES, VOCABULARY = 8, 32, 5


class FakeCache:
    """moeinf.prefixes.store.SequenceCache, and the model that fills it (moeinf.sampling.step_queue.StepModel).

    The row of a token, the recurrent state and the next token follow from all tokens so far, and from whether the
    sequence is longer than the limit.
    """

    def __init__(self, capacity: int = 4096, *, rewinds: bool = True, limit: int = 4096) -> None:
        self.capacity, self.rewinds, self.limit, self.reach = capacity, rewinds, limit, 0
        self.length = self.computed = 0  # computed: tokens that went through `forward`
        self.rows = np.zeros((capacity, ROW_BYTES), np.uint8)
        self.state = np.zeros(STATE_BYTES, np.uint8)
        self.copied_bytes = 0
        self.pictures: Sequence[SoftTokens] = ()
        self.shared: SharedRows = OwnRows()
        self.on_hidden: Callable[[int, Any], None] | None = None

    @property
    def cache(self) -> FakeCache:
        return self

    @property
    def token_bytes(self) -> int:
        return ROW_BYTES

    @property
    def state_bytes(self) -> int:
        return 0 if self.rewinds else STATE_BYTES

    @property
    def layout(self) -> list[list[int]]:
        return [[1, ROW_BYTES]] + ([] if self.rewinds else [[STATE_BYTES]])

    @property
    def positions(self) -> int:
        return int(self.reach > self.limit)

    def outgrown(self, length: int) -> bool:
        return self.length > 0 and (length > self.limit) != (self.reach > self.limit)

    def truncate(self, length: int) -> int:
        assert 0 <= length <= self.length
        if length < self.length and not self.rewinds:
            length, self.state[...] = 0, 0
        self.length = length
        return length

    def begin_as(self, other: FakeCache, length: int) -> None:
        assert self.rewinds and other.positions == self.positions and length <= other.length
        self.rows[:length] = other.rows[:length]
        self.length = length

    def save_rows(self, start: int, end: int) -> ByteArray:
        assert end <= self.length
        self.copied_bytes += (end - start) * ROW_BYTES
        kept: ByteArray = self.rows[start:end].reshape(-1).copy()
        return kept

    def load_rows(self, start: int, kept: ByteArray, num_tokens: int, first: int, last: int) -> None:
        self.rows[start + first : start + last] = kept.reshape(num_tokens, ROW_BYTES)[first:last]

    def save_state(self) -> ByteArray:
        assert not self.rewinds
        kept: ByteArray = self.state.copy()
        return kept

    def resume(self, length: int, kept: ByteArray | None) -> None:
        assert (kept is None) == self.rewinds
        self.length = length
        if kept is not None:
            self.state[...] = kept

    def step(self, parts: Sequence[NewTokens], between_layers: object = None) -> Float32Array:
        """Computes behind what the cache holds, whatever that is: rows of other tokens give other logits."""
        ((token_ids, cache, of_tokens, tried),) = parts
        assert id(cache) == id(self)
        reach = max(of_tokens, self.length + len(token_ids))
        assert not self.outgrown(reach)
        self.reach = reach
        start, state, found = self.length, self.state.copy(), list[Float32Array]()
        self._after = list[ByteArray]()
        for token in token_ids:
            token += self.positions * 1000
            before = self.rows[: self.length].tobytes() if self.rewinds else self.state.tobytes()
            seen = hashlib.blake2b(before + token.to_bytes(4, "little", signed=True), digest_size=STATE_BYTES).digest()
            self.rows[self.length] = np.frombuffer(seen[:ROW_BYTES], np.uint8)
            if not self.rewinds:
                self.state[...] = np.frombuffer(seen, np.uint8)
            self.length += 1
            self.computed += 1
            self._after.append(self.state.copy())
            found.append(self._logits())
        if tried:
            self.length, self.state = start, state
        return np.stack(found if tried else found[-1:])

    def _logits(self) -> Float32Array:
        everything = self.rows[: self.length].tobytes() + (b"" if self.rewinds else self.state.tobytes())
        numbers = hashlib.blake2b(everything, digest_size=4 * VOCABULARY).digest()
        return np.frombuffer(numbers, np.uint32).astype(np.float32)

    def commit(self, num_tokens: int) -> None:
        self.length += num_tokens
        self.state = self._after[num_tokens - 1]
