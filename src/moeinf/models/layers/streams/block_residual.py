"""Residuals that are chosen among what blocks of layers have left (Inkling2BlockAttentionResidual in transformers).

The hidden state h of a token is what the layers of its present block have added up to. Of it and of the states that
earlier blocks have left, each divided by its RMS, n_j, a layer with query q is given
    sum over j of softmax_j(q . n_j / sqrt(hidden)) n_j
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from moeinf.models.layers.array_math import A, Array, ArrayMathOf, Hidden
from moeinf.models.layers.streams.gated_residual import SLICE
from moeinf.types import Workspace

_EPS = 1e-6


class BlockStates(Generic[A]):
    """Of the tokens of this pass, what each block has left, divided by its RMS: [tokens, hidden] each."""

    def __init__(self, math: ArrayMathOf[A]) -> None:
        self._math = math
        self.left: list[A] = []

    def add(self, x: A) -> None:
        """x: what a block has left, which may change afterwards."""
        self.left.append(self.normed(x))

    def normed(self, x: A) -> A:
        return rms_normed(self._math, x, _EPS)

    def given(self, x: A, queries: A, left: Sequence[A] | None = None) -> list[A]:
        """What each of queries [count, hidden] chooses of x and of what blocks have left, in memory of its own.

        left: of which blocks; None: all."""
        left = self.left if left is None else left
        parts = [
            self._given(x[at : at + SLICE], queries, [each[at : at + SLICE] for each in left])
            for at in range(0, len(x), SLICE)
        ]
        return [self._math.concatenate([part[i] for part in parts], 0) for i in range(len(queries))]

    def _given(self, x: A, queries: A, left: Sequence[A]) -> list[A]:
        math, hidden = self._math, x.shape[-1]
        states = math.concatenate([each[:, None] for each in (*left, self.normed(x))], 1)  # [tokens, states, hidden]
        found = []
        for i in range(len(queries)):
            shares = math.softmax(math.sum(states * queries[i : i + 1], -1, False) * hidden**-0.5)
            found.append(math.sum(states * shares[:, :, None], 1, False))
        return found


class BlockResidual:
    """moeinf.models.layers.streams.hyper.Connection, of what comes behind attention."""

    def __init__(self, states: BlockStates[Array], query: Array) -> None:
        """query [1, hidden]."""
        self._states, self._query = states, query

    def read(self, streams: Hidden) -> tuple[Hidden, None]:
        return self._states.given(streams, self._query)[0], None

    def look(self, streams: Hidden) -> Hidden:
        return self.read(streams)[0]

    def write(self, streams: Hidden, added: Hidden, known: object) -> None:
        streams += added


def rms_normed(math: ArrayMathOf[A], x: A, eps: float) -> A:
    """x / rms(x) over the last dimension."""
    return x * (math.sum(x * x, -1, True) * (1 / x.shape[-1]) + eps) ** -0.5


def block_states_workspace(hidden: int, blocks: int, queries: int) -> Workspace:
    """What blocks leave of a pass, and what layers are given; of a slice, its states and their products."""
    return Workspace(token=(blocks + queries + 2) * hidden, parts=SLICE * (3 * (blocks + 1) + queries) * hidden)
