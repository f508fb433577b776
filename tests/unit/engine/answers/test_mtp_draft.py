"""The layer that guesses is given what the model made of each token, and goes back where tokens were others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.engine.answers.mtp_draft import MOST_WAITING, READ_AT_ONCE, HiddenRows, drafts_by_layer
from moeinf.models.layers.kv_cache import Cache
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.speculation.drafts import NOTHING
from moeinf.types import Float32Array


class FakeCache:
    def __init__(self) -> None:
        self.rows: list[tuple[int, float]] = []

    @property
    def length(self) -> int:
        return len(self.rows)

    def truncate(self, length: int) -> int:
        del self.rows[length:]
        return length


class Counting:
    """After a token comes the next number; a row is a token, and the first number of what was before it."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.caches: list[FakeCache] = []

    def new_cache(self, capacity: int) -> FakeCache:
        self.caches.append(FakeCache())
        return self.caches[-1]

    def guess(self, ids: Sequence[int], hidden: Float32Array, cache: FakeCache) -> tuple[Float32Array, Float32Array]:
        assert len(ids) == len(hidden) > 0
        cache.rows += zip(ids, hidden[:, 0].tolist(), strict=True)
        self.read += ids
        logits = np.zeros((1, 100), np.float32)
        logits[0, (ids[-1] + 1) % 100] = 1
        return logits, np.full((1, 2), -1.0, np.float32)


class Sequence_:
    """A sequence of the model, which makes of token t, as the i-th, the row [t + i / 1000, 0]."""

    def __init__(self, context: int = 4096) -> None:
        self.layer = Counting()
        self.cached = CachedTokens(cast(Any, Cache([], context)))
        self.source = drafts_by_layer(cast(Any, self.layer), context)
        self.drafter = self.source(self.cached)

    def compute(self, ids: Sequence[int], keep: int | None = None) -> None:
        """A pass of these tokens, of which the first `keep` turn out to be right."""
        at = len(self.cached.tokens)
        told = cast(Cache, self.cached.cache).on_hidden
        assert told is not None
        told(at, np.array([[row(token, at + i), 0] for i, token in enumerate(ids)], np.float32))
        self.cached.tokens += ids[: len(ids) if keep is None else keep]

    def begin(self, kept: int) -> None:
        """Another answer, of which so many tokens are there."""
        del self.cached.tokens[kept:]
        self.drafter.close()
        self.drafter = self.source(self.cached)

    @property
    def rows(self) -> list[tuple[int, float]]:
        return [(token, round(value, 3)) for token, value in self.layer.caches[0].rows]

    def pairs(self, last: int, first: int = 0) -> list[tuple[int, float]]:
        """What the layer has to hold in front of a token that is not computed yet."""
        tokens = [*self.cached.tokens, last]
        return [(tokens[i + 1], round(row(tokens[i], i), 3)) for i in range(first, len(tokens) - 1)]


def row(token: int, at: int) -> float:
    return token + at / 1000


def test_a_row_is_made_of_a_token_and_of_what_was_before_it() -> None:
    sequence = Sequence_()
    sequence.compute([5, 6, 7])
    guess = sequence.drafter.draft([5, 6, 7, 20], 3)
    assert (list(guess.ids), guess.kind) == ([21, 22, 23], "MTP")
    assert sequence.rows == sequence.pairs(20)
    assert sequence.layer.read == [6, 7, 20, 21, 22], "a guess behind a guess is made of the layer's own row"
    sequence.compute([20, 21, 22, 23], keep=2)
    assert sequence.drafter.draft([5, 6, 7, 20, 21, 40], 1).ids == [41]
    assert sequence.rows == sequence.pairs(40) and sequence.layer.read[5:] == [21, 40]


def test_tokens_that_were_not_computed_here_begin_anew() -> None:
    sequence = Sequence_()
    sequence.cached.tokens += [1, 2, 3]  # taken from what was kept of a prompt
    assert sequence.drafter.draft([1, 2, 3, 4], 2) == NOTHING
    sequence.compute([4, 5])
    assert sequence.drafter.draft([1, 2, 3, 4, 5, 6], 2).ids == [7, 8]
    assert sequence.rows == sequence.pairs(6, first=3)
    sequence.begin(kept=4)
    sequence.compute([30, 31])
    assert sequence.drafter.draft([1, 2, 3, 4, 30, 31, 32], 1).ids == [33]
    assert sequence.rows == sequence.pairs(32, first=3), "the beginning of the answer before is still of use"


def test_another_prompt_of_the_same_length_is_not_taken_for_the_last_one() -> None:
    sequence = Sequence_()
    sequence.compute([1, 2, 3])
    assert sequence.drafter.draft([1, 2, 3, 4], 1).ids == [5]
    sequence.begin(kept=0)
    sequence.cached.tokens += [7, 8, 9]
    sequence.compute([10])
    assert sequence.drafter.draft([7, 8, 9, 10, 11], 1).ids == [12]
    assert sequence.rows == sequence.pairs(11, first=3)


def test_a_long_prompt_is_read_piece_by_piece_and_its_beginning_left_out() -> None:
    sequence, prompt = Sequence_(), [i % 90 for i in range(9 * 256)]
    for at in range(0, len(prompt), 256):
        sequence.compute(prompt[at : at + 256])
    pieces = 0
    while sequence.drafter.draft([*prompt, 3], 2) == NOTHING:
        pieces += 1
        assert len(sequence.layer.read) == pieces * READ_AT_ONCE
    first = 9 * 256 - MOST_WAITING
    assert sequence.rows == sequence.pairs(3, first=first) and len(sequence.layer.read) == MOST_WAITING + 1


def test_without_room_it_begins_anew_and_behind_a_picture_too() -> None:
    sequence = Sequence_(context=8)
    sequence.compute([1, 2, 3, 4])
    assert sequence.drafter.draft([1, 2, 3, 4, 5], 2).ids == [6, 7]
    sequence.compute([5, 6, 7])
    assert sequence.drafter.draft([1, 2, 3, 4, 5, 6, 7, 8], 2).ids == [9, 10]
    assert sequence.rows == sequence.pairs(8)[-len(sequence.rows) :] and len(sequence.rows) <= 6
    seen = Sequence_()
    seen.compute([1, -1, -1, 2, 3])
    assert seen.drafter.draft([1, 2, 3, 4], 1) == NOTHING
    seen.compute([4, 5])
    assert seen.drafter.draft([1, 2, 3, 4, 5, 6], 1).ids == [7]
    assert seen.rows == seen.pairs(6)[-len(seen.rows) :]


def test_rows_go_with_the_cache_that_a_sequence_has() -> None:
    layer = Counting()
    source = drafts_by_layer(cast(Any, layer), 64)
    caches = [Cache([], 64), Cache([], 64)]
    one, other = (CachedTokens(cast(Any, cache)) for cache in caches)
    drafters = source(one), source(other)
    assert len(layer.caches) == 2
    caches[0].on_hidden(0, np.ones((2, 2), np.float32))  # type: ignore[misc]
    one.tokens += [1, 2]
    assert drafters[0].draft([1, 2, 3], 1).ids == [4]
    one.cache, one.tokens = cast(Any, caches[1]), [1, 2]  # it was paused, and goes on with another cache
    assert drafters[0].draft([1, 2, 3], 1) == NOTHING
    caches[1].on_hidden(2, np.ones((1, 2), np.float32))  # type: ignore[misc]
    one.tokens += [3]
    assert drafters[0].draft([1, 2, 3, 4], 1).ids == [5] and len(layer.caches) == 2


@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans()), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_layer_holds_pairs_of_the_sequence(steps: list[tuple[int, int, bool]]) -> None:
    sequence, number = Sequence_(), 0
    for count, kept, again in steps:
        if again:
            sequence.begin(kept=min(kept, len(sequence.cached.tokens)))
        new = [(number + i) % 90 for i in range(count)]
        number += count + 7
        sequence.compute(new, keep=max(1, count - kept) if not again else None)
        guess = sequence.drafter.draft([*sequence.cached.tokens, 91], 2)
        if guess != NOTHING:
            assert guess.ids == [92, 93]
            wanted = sequence.pairs(91)
            assert sequence.rows == wanted[len(wanted) - len(sequence.rows) :]


@pytest.mark.parametrize("most", [MOST_WAITING])
def test_rows_are_those_of_the_last_tokens(most: int) -> None:
    rows = HiddenRows()
    rows.take(0, np.arange(10, dtype=np.float32)[:, None])
    rows.take(6, np.array([[60.0], [70.0]], np.float32))
    assert (rows.start, rows.end) == (0, 8) and rows.range(4, 8).ravel().tolist() == [4, 5, 60, 70]
    rows.cut(5)
    rows.forget(3)
    assert (rows.start, rows.end) == (3, 5) and rows.range(3, 5).ravel().tolist() == [3, 4]
    rows.take(5, np.zeros((2 * most - 2, 1), np.float32))
    assert (rows.start, rows.end) == (3, 2 * most + 3), "all that were told, as long as these are not too many"
    rows.take(rows.end, np.zeros((1, 1), np.float32))
    assert (rows.start, rows.end) == (most + 4, 2 * most + 4)
    rows.take(3 * most, np.ones((1, 1), np.float32))  # behind tokens that were not computed
    assert (rows.start, rows.end) == (3 * most, 3 * most + 1)
