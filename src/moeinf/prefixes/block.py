"""A stretch of tokens and what a model keeps of them, named by these tokens and all before them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from moeinf.types import ByteArray

BLOCK_TOKENS: Final = 256  # of a block at most: what is evicted, and read from the disk, at once
DIGEST_BYTES: Final = 16

TOKEN_TYPE: Final = np.int32
TokenArray = npt.NDArray[np.int32]
Source = Literal["", "live", "memory", "disk"]  # the farthest place that a beginning came from; "": there is none


def digest_of(parent: bytes, tokens: TokenArray) -> bytes:
    """The name of a block behind another: equal names mean equal tokens from the first one on."""
    return hashlib.blake2b(parent + tokens.astype("<i4").tobytes(), digest_size=DIGEST_BYTES).digest()


@dataclass(eq=False, slots=True)
class Block:
    """Tokens start to start + len(tokens) of a sequence, behind the block `parent`."""

    parent: bytes
    digest: bytes
    start: int
    tokens: TokenArray
    rows: ByteArray  # of these tokens, as Cache.save_rows gives them
    state: ByteArray | None = None  # of recurrent layers after the last of them
    pending: bool = False  # to be written to the disk: stays in memory until then

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def has_state(self) -> bool:
        return self.state is not None

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.tokens.nbytes + (0 if self.state is None else self.state.nbytes)

    def is_next(self, tokens: TokenArray) -> bool:
        """Whether `tokens`, which follow the parent, begin with all of the block's."""
        return len(tokens) >= len(self.tokens) and bool(np.array_equal(tokens[: len(self.tokens)], self.tokens))

    def common(self, tokens: TokenArray) -> int:
        """How many tokens both begin with."""
        return common_length(self.tokens, tokens)


class Entry(Protocol):
    """A block, wherever it is."""

    @property
    def parent(self) -> bytes: ...

    @property
    def digest(self) -> bytes: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def has_state(self) -> bool: ...

    def is_next(self, tokens: TokenArray) -> bool: ...

    def common(self, tokens: TokenArray) -> int: ...


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the way that a prompt goes through the blocks: `taken` tokens of an entry, from token `start` on."""

    entry: Entry
    start: int
    taken: int

    @property
    def whole(self) -> bool:
        return self.taken == self.entry.num_tokens

    @property
    def end(self) -> int:
        return self.start + self.taken


def common_length(one: TokenArray, other: TokenArray) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def next_entry(candidates: Iterable[Entry], tokens: TokenArray) -> Entry | None:
    """The longest candidate that `tokens` begin with, of equals one with a recurrent state, else the first."""
    fitting = [entry for entry in candidates if entry.is_next(tokens)]
    return max(fitting, key=lambda entry: (entry.num_tokens, entry.has_state), default=None)


def token_array(tokens: Sequence[int]) -> TokenArray:
    return np.asarray(tokens, TOKEN_TYPE)
