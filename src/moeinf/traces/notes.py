"""Routings of a request as they came, kept in lists until they are put into arrays, many at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf.types import Float32Array, IntArray


class Notes:
    """Each note is of one layer and some tokens in a row: ids int64 and weights float32, [tokens, top_k].

    They are kept as bytes, which take a fifth of the time of an array's copy. Whoever knows where notes lie may append
    to `ids` and `weights` alone, and say it when they are put into arrays.
    """

    def __init__(self) -> None:
        self.firsts: list[int] = []  # the first of the tokens
        self.layers: list[int] = []
        self.ids: list[bytes] = []
        self.weights: list[bytes] = []

    def add(self, first: int, layer: int, ids: bytes, weights: bytes) -> None:
        self.firsts.append(first)
        self.layers.append(layer)
        self.ids.append(ids)
        self.weights.append(weights)

    def drop(self, kept: int) -> None:
        """Forgets all but the first notes."""
        for notes in (self.firsts, self.layers, self.ids, self.weights):
            del notes[kept:]

    def put_into(self, ids: IntArray, weights: Float32Array) -> None:
        """Writes all of them into arrays [tokens, layers, top_k], and forgets them."""
        top_k = ids.shape[2]
        rows = np.frombuffer(b"".join(self.ids), np.int64).reshape(-1, top_k)
        lengths = np.array([len(note) for note in self.ids], np.int64) // (top_k * rows.itemsize)
        starts = np.array(self.firsts, np.int64) - (np.cumsum(lengths) - lengths)
        tokens = np.repeat(starts, lengths) + np.arange(len(rows))
        layers = np.repeat(np.array(self.layers, np.int64), lengths)
        ids[tokens, layers] = rows
        weights[tokens, layers] = np.frombuffer(b"".join(self.weights), np.float32).reshape(-1, top_k)
        self.drop(0)


def notes_of_passes(starts: Sequence[int], layers: Sequence[range]) -> tuple[list[int], list[int]]:
    """The first token and the layer of each note, of passes that begin with these tokens and ran these layers."""
    firsts = [start for start, ran in zip(starts, layers, strict=True) for _ in ran]
    return firsts, [layer for ran in layers for layer in ran]
