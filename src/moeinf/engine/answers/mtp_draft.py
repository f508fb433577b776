"""The layer of a model that guesses at tokens (moeinf.models.mtp), asked for guesses in an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from moeinf.engine.answers.drafting import DraftSource
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.mtp import MtpDecoder
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.speculation.drafts import NOTHING, Guess
from moeinf.types import Float32Array

READ_AT_ONCE: Final = 64  # tokens
MOST_WAITING: Final = 1024  # tokens that it is told of and keeps at least, where nobody asks


class HiddenRows:
    """What the head was given of the last tokens of a sequence: of those from `start` to `end`, without a gap."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.lowest = 0  # the first token of which rows have come since that was asked for
        self._rows = list[Float32Array]()

    def take(self, length: int, rows: Float32Array) -> None:
        """rows [tokens, hidden_size]: of the tokens behind `length`, in place of what was known of them before."""
        self.lowest = min(self.lowest, length)
        if not self.start < length <= self.end:
            self.start, self._rows = length, []
        else:
            kept = self.range(self.start, length)
            self._rows = [kept] if len(kept) else []
        self._rows.append(rows)
        self.end = length + len(rows)
        if self.end - self.start > 2 * MOST_WAITING:  # seldom, as the others are copied
            self.forget(self.end - MOST_WAITING)

    def range(self, start: int, end: int) -> Float32Array:
        """Those of the tokens from `start` to `end`."""
        if len(self._rows) > 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0][start - self.start : end - self.start] if self._rows else np.empty((0, 0), np.float32)

    def cut(self, end: int) -> None:
        """Forgets those from a token on."""
        if end < self.end:
            self._rows = [self.range(self.start, end)] if end > self.start else []
            self.start, self.end = min(self.start, end), end

    def forget(self, start: int) -> None:
        """Forgets those in front of a token."""
        if start > self.start:
            self._rows = [self.range(min(start, self.end), self.end)]
            self.start = min(start, self.end)


class GuessingRows:
    """What the layer has seen of a sequence of the model, beside the cache of it.

    Row i of the layer's own cache is made of token `first` + i and the one behind it.
    """

    def __init__(self, layer: MtpDecoder, context: int) -> None:
        """context: rows that it has room for."""
        self._layer, self._context = layer, context
        self._cache, self.hidden = layer.new_cache(context), HiddenRows()
        self._first, self._read = 0, list[int]()  # the second tokens of the rows that the cache holds
        self.known = False  # whether the running answer begins as these tokens

    def guesses(self, told: Sequence[int], most: int) -> Sequence[int]:
        """told: the tokens of the sequence, and the one that comes next."""
        hidden = self.hidden
        hidden.cut(len(told) - 1)  # of guesses that were wrong
        if hidden.end < len(told) - 1:
            return ()
        self._keep(told)
        if hidden.start > self._first + len(self._read) or hidden.end - self._first + most > self._context:
            self._begin(max(hidden.start, hidden.end - self._context // 2))
        at = self._first + len(self._read)
        end = min(at + READ_AT_ONCE, hidden.end)
        if any(token < 0 for token in told[at + 1 : end + 1]):  # of a picture
            self._begin(end)
            hidden.forget(end)
            return ()
        new, rows = told[at + 1 : end + 1], hidden.range(at, end)
        if not new:
            return ()
        found = list[int]()
        while len(found) < most and self._cache.length + len(new) <= self._context:
            logits, rows = self._layer.guess(new, rows, self._cache)
            if not found:
                self._read += new
                hidden.forget(end - READ_AT_ONCE)  # the last are needed where the tokens behind them turn out as others
                if end < hidden.end:
                    return ()  # it reads on before the next step
            new = [int(logits[-1].argmax())]
            found += new
        self._cache.truncate(len(self._read))  # what was guessed behind guesses is made anew of what is known
        return found

    def _keep(self, told: Sequence[int]) -> None:
        """Forgets rows of tokens that are others now, or of which other rows have come."""
        hidden, first = self.hidden, self._first
        valid = min(len(self._read), max(0, hidden.lowest - first))
        if not self.known and (
            hidden.lowest > first + len(self._read) + 1
            or self._read[: max(0, valid - 1)] != list(told[first + 1 : first + valid])
        ):  # what it was told in an earlier answer was of other tokens, or may have been
            hidden.forget(hidden.lowest)
            self._begin(hidden.start)
            valid = 0
        if valid and self._read[valid - 1] != told[first + valid]:
            valid -= 1
        hidden.lowest, self.known = hidden.end, True
        if valid < len(self._read):
            del self._read[valid:]
            self._cache.truncate(valid)

    def _begin(self, first: int) -> None:
        self._first = first
        self._read.clear()
        self._cache.truncate(0)


class MtpDrafter:
    """moeinf.sampling.speculation.drafts.Drafter. Each guess but the first is made behind a guess by the same layer."""

    kind: str | None = "MTP"

    def __init__(self, rows_of: Callable[[Cache], GuessingRows], sequence: CachedTokens) -> None:
        self._rows_of, self._sequence = rows_of, sequence
        self._rows: GuessingRows | None = None
        self._followed()  # before the prompt is read

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        found = self._followed().guesses([*self._sequence.tokens, tokens[-1]], most)
        return Guess(found, self.kind or "") if found else NOTHING

    def _followed(self) -> GuessingRows:
        """The rows beside the cache that the sequence has now: one that was paused may have got another."""
        cache = self._sequence.cache
        assert isinstance(cache, Cache)
        rows = self._rows_of(cache)
        if rows is not self._rows:
            self._rows, rows.known = rows, False
            cache.on_hidden = rows.hidden.take
        return rows

    def close(self) -> None:
        pass  # the next answer of the sequence often begins alike


def drafts_by_layer(layer: MtpDecoder, context: int) -> DraftSource:
    """context: tokens that its caches have room for."""
    of_caches: dict[int, GuessingRows] = {}  # of the model's sequences, which live as long as it does

    def rows_of(cache: Cache) -> GuessingRows:
        if id(cache) not in of_caches:
            of_caches[id(cache)] = GuessingRows(layer, context)
        return of_caches[id(cache)]

    return lambda sequence: MtpDrafter(rows_of, sequence)
