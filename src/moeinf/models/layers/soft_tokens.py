"""Pictures in a sequence: where their soft tokens lie, what these are, and which positions they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.models.layers.array_math import A
from moeinf.types import Float32Array, IntArray

SOFT_IDS = -1  # and below: the token ids of pictures, which differ with the picture; no embedding has rows for them


@dataclass(frozen=True, slots=True)
class SoftTokens:
    """The tokens of one picture, which have rows instead of ids that are looked up, from token `start` of a sequence.

    rows() gives them, [tokens, hidden], or [tokens, hidden * (1 + n)] where the first n layers are given some besides,
    which are added behind each; it is called when they are first needed, which is never where keys and values
    of an earlier request are reused.
    """

    start: int
    grid: tuple[int, int]  # rows and columns of tokens
    rows: Callable[[], Float32Array]

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


def of_vocabulary(ids: Sequence[int], pictures: Sequence[SoftTokens], picture_id: int) -> Sequence[int]:
    """With an id of the vocabulary in the place of those of pictures."""
    return [picture_id if token < 0 else token for token in ids] if pictures else ids


def put_rows(x: A, pictures: Sequence[SoftTokens], start: int, of_host: Callable[[Float32Array], A]) -> None:
    """Writes the rows of pictures into the hidden states x [tokens, hidden] of the tokens from `start` on."""
    for place, rows in _rows_within(pictures, start, len(x)):
        x[place] = of_host(rows[:, : x.shape[1]])


def add_rows(
    x: A, pictures: Sequence[SoftTokens], start: int, of_host: Callable[[Float32Array], A], layer: int
) -> None:
    """Adds what pictures have for a layer to the hidden states behind it."""
    begin = (layer + 1) * x.shape[1]
    for place, rows in _rows_within(pictures, start, len(x)):
        if begin < rows.shape[1]:
            x[place] += of_host(rows[:, begin : begin + x.shape[1]])


def any_within(pictures: Sequence[SoftTokens], start: int, count: int) -> bool:
    """Whether any of the tokens from `start` on is a picture's."""
    return any(each.start < start + count and start < each.end for each in pictures)


def _rows_within(pictures: Sequence[SoftTokens], start: int, count: int) -> Iterator[tuple[slice, Float32Array]]:
    """Of each picture with some of the tokens from `start` on: which of these they are, and their rows."""
    for picture in pictures:
        first, last = max(picture.start, start), min(picture.end, start + count)
        if first < last:
            yield slice(first - start, last - start), picture.rows()[first - picture.start : last - picture.start]


def ends_seen(pictures: Sequence[SoftTokens], start: int, count: int) -> IntArray | None:
    """The place behind the last token that each of the tokens from `start` on sees, int64 [count].

    None where no picture has any of them: each sees what is up to itself. A token of a picture sees all of the picture,
    which has to lie in what is computed; any other ends with itself.
    """
    if not any_within(pictures, start, count):
        return None
    ends = np.arange(start + 1, start + count + 1, dtype=np.int64)
    for picture in pictures:
        ends[max(0, picture.start - start) : max(0, picture.end - start)] = picture.end
    assert not count or ends.max() <= start + count, "a picture is cut apart"
    return ends


def positions_3d(pictures: Sequence[SoftTokens], start: int, count: int) -> IntArray:
    """Time, row and column of the tokens from `start` on, int64 [3, count] (M-RoPE, arXiv 2409.12191, section 2.1).

    Text has the same number in all three. A picture's tokens share a time, the next number, and count rows and columns
    from it; what follows goes on behind the largest.
    """
    places = np.arange(start, start + count, dtype=np.int64)
    found, saved = np.stack([places] * 3), 0
    for picture in pictures:
        inside = (places >= picture.start) & (places < picture.end)
        row, col = np.divmod(places[inside] - picture.start, picture.grid[1])
        found[:, inside] = picture.start - saved + np.stack([np.zeros_like(row), row, col])
        saved += picture.num_tokens - max(picture.grid)
        found[:, places >= picture.end] = places[places >= picture.end] - saved
    return found
