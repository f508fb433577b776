"""What the tokens of a sequence leave for the next one in a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A, ArrayMathOf
from moeinf.models.layers.kv_cache import Span
from moeinf.types import ByteArray


@dataclass(frozen=True, slots=True)
class Piece(Generic[A]):
    """Tokens that go through a recurrence at once, and what they find and leave."""

    rows: slice  # of the pass
    conv: A
    heads: A
    new_conv: A
    new_heads: A

    @property
    def states(self) -> tuple[A, A, A, A]:
        return self.conv, self.heads, self.new_conv, self.new_heads


class RecurrentState(Generic[A]):
    """The inputs that a convolution still sees, and the state of each head.

    A pass reads `conv` and `heads` and writes `new_conv` and `new_heads`, which count when it is over (`commit`): one
    that is given up half-way has changed nothing. Of a pass whose tokens are tried, `new_conv` has room for what
    every one of them leaves, one row more for each; so have `new_heads` where they are such rows, too, and else they
    are one array for each token, as `pieces` gives them out.
    """

    rewinds = False

    def __init__(
        self, math: ArrayMathOf[A], conv: tuple[int, int], heads: tuple[int, ...], *, rows_alone: bool = False
    ) -> None:
        """The shapes of both; an empty one has a 0 in it. rows_alone: `heads`, too, are rows of the last inputs."""
        self._math, self._rows_alone = math, rows_alone
        self.conv, self.new_conv = (math.zeros(conv) for _ in range(2))
        self.heads, self.new_heads = (math.zeros(heads) for _ in range(2))
        self._in_conv = conv[0] * conv[1]
        self.num_bytes = 4 * (self._in_conv + prod(heads))  # what the next pass reads
        self._usual = self.new_conv, self.new_heads  # of a pass that is not tried
        self._tried = 0  # tokens of the running pass, if it is
        self._each: list[A] = []  # the heads that each token of such a pass leaves

    def try_rows(self, rows: int) -> None:
        """The next pass has so many tokens, and `commit` is told how many of them count; 0: it is not tried."""
        if not self._tried:
            self._usual = self.new_conv, self.new_heads
        self._tried, more = rows, rows - 1
        if not rows:
            self.new_conv, self.new_heads = self._usual
            return
        self.new_conv = self._math.zeros((len(self.conv) + more, *self.conv.shape[1:]))
        if self._rows_alone:
            self.new_heads = self._math.zeros((len(self.heads) + more, *self.heads.shape[1:]))
        else:
            self._each += [self._math.zeros(self.heads.shape) for _ in range(len(self._each), rows)]

    def pieces(self, tokens: int, most: int) -> Iterator[Piece[A]]:
        """A pass of so many tokens in pieces of at most `most`; one by one where they are tried."""
        conv, heads = self.conv, self.heads
        for start in range(0, tokens, 1 if self._tried else most):
            if self._tried:
                new_conv, new_heads = self.new_conv[start : start + len(conv)], self._each[start]
                yield Piece(slice(start, start + 1), conv, heads, new_conv, new_heads)
            else:
                new_conv, new_heads = self.new_conv, self.new_heads
                yield Piece(slice(start, min(start + most, tokens)), conv, heads, new_conv, new_heads)
            conv, heads = new_conv, new_heads

    def commit(self, rows: int) -> None:
        """rows: tokens of the pass that count; all of them, unless they were tried."""
        if self._tried:
            self._commit_tried(rows)
        elif isinstance(self.heads, np.ndarray):
            self.conv, self.new_conv = self.new_conv, self.conv
            self.heads, self.new_heads = self.new_heads, self.heads
        else:  # work captured on a device reads and writes the same memory at every repetition
            self.conv[...] = self.new_conv
            self.heads[...] = self.new_heads

    def _commit_tried(self, rows: int) -> None:
        first = rows - 1
        self.conv[...] = self.new_conv[first : first + len(self.conv)]
        if self._rows_alone:
            self.heads[...] = self.new_heads[first : first + len(self.heads)]
        else:
            self.heads, self._each[first] = self._each[first], self.heads
        self.try_rows(0)

    def truncate(self, length: int) -> None:
        assert length == 0
        self.conv[...] = 0
        self.heads[...] = 0

    def save(self, into: ByteArray) -> None:
        floats = into.view(np.float32)
        conv, heads = self._math.to_host(self.conv), self._math.to_host(self.heads)
        floats[: self._in_conv], floats[self._in_conv :] = conv.reshape(-1), heads.reshape(-1)

    def load(self, kept: ByteArray) -> None:
        floats = kept.view(np.float32)
        self.conv[...] = self._math.of_host(floats[: self._in_conv].reshape(self.conv.shape))
        self.heads[...] = self._math.of_host(floats[self._in_conv :].reshape(self.heads.shape))


def passes(x: A, spans: Sequence[Span[object]], layer: int, most: int) -> Iterator[tuple[A, list[Piece[A]]]]:
    """The rows that are projected together, `most` at once, and the pieces that they are of.

    Several sequences go together where they are no more than that. A piece may go on with what the one before leaves.
    """
    if len(x) <= most:
        yield x, pieces_of(spans, layer)
        return
    for span in spans:
        state: RecurrentState[A] = span.cache.states[layer]
        for piece in state.pieces(span.num_rows, most):
            rows = x[span.rows][piece.rows]
            yield rows, [replace(piece, rows=slice(0, len(rows)))]


def pieces_of(spans: Sequence[Span[object]], layer: int) -> list[Piece[A]]:
    """Those of all sequences, each as a whole, or token by token where they are tried."""
    found: list[Piece[A]] = []
    for span in spans:
        state: RecurrentState[A] = span.cache.states[layer]
        for piece in state.pieces(span.num_rows, span.num_rows):
            rows = slice(span.rows.start + piece.rows.start, span.rows.start + piece.rows.stop)
            found.append(replace(piece, rows=rows))
    return found
