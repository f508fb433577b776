"""Residuals that are chosen among what blocks of layers have left (Attention Residuals; Kimi K3, Inkling 2).

The hidden state h of a token is what the layers of its present block have added up to. Of it and of the states s_j that
earlier blocks have left, each divided by its RMS, n_j, a layer with query q is given
    sum over j of softmax_j(q . n_j) s_j                        in Kimi K3 (KimiDecoderLayer of the published code)
    sum over j of softmax_j(q . n_j / sqrt(hidden)) n_j         in Inkling 2 (Inkling2BlockAttentionResidual)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from moeinf.models.layers.array_math import A, Array, ArrayMathOf, Hidden
from moeinf.models.layers.kv_cache import LayerState
from moeinf.models.layers.streams.gated_residual import SLICE
from moeinf.models.layers.streams.stem import NormedStem
from moeinf.types import Workspace

_EPS = 1e-6


class BlockStates(Generic[A]):
    """Of the tokens of this pass, what each block has left, divided by its RMS: [tokens, hidden] each."""

    def __init__(self, math: ArrayMathOf[A]) -> None:
        self._math = math
        self.left: list[A] = []

    def add(self, x: A) -> None:
        """x: what a block has left, which may change afterwards."""
        self.left.append(self._kept(x))

    def _kept(self, x: A) -> A:
        """In memory of its own."""
        return rms_normed(self._math, x, _EPS)

    def _scores(self, states: A, query: A) -> A:
        """Of states [tokens, states, hidden], as they are kept, by which a query chooses."""
        scale: float = states.shape[-1] ** -0.5
        return self._math.sum(states * query, -1, False) * scale

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
        math = self._math
        states = math.concatenate([each[:, None] for each in (*left, self._kept(x))], 1)  # [tokens, states, hidden]
        found = []
        for i in range(len(queries)):
            shares = math.softmax(self._scores(states, queries[i : i + 1]))
            found.append(math.sum(states * shares[:, :, None], 1, False))
        return found


class RawStates(BlockStates[A]):
    """The same of states as blocks have left them, which are divided by their RMS for scores alone."""

    def __init__(self, math: ArrayMathOf[A], eps: float) -> None:
        super().__init__(math)
        self._eps = eps

    def _kept(self, x: A) -> A:
        return x * 1.0

    def _scores(self, states: A, query: A) -> A:
        return self._math.sum(rms_normed(self._math, states, self._eps) * query, -1, False)


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


class OpeningResidual(BlockResidual):
    """The same of the attention that a block begins with: what is there before is left, and its output remains."""

    def read(self, streams: Hidden) -> tuple[Hidden, None]:
        given = super().read(streams)
        self._states.add(streams)
        return given

    def look(self, streams: Hidden) -> Hidden:
        return super().read(streams)[0]

    def write(self, streams: Hidden, added: Hidden, known: object) -> None:
        streams[...] = added


class BlocksStem(NormedStem):
    """moeinf.models.layers.streams.stem.Stem: at the end a choice among the states that blocks have left."""

    def __init__(
        self,
        embedding: Callable[[Sequence[int]], Array],
        norm: Callable[[Array], Array],
        states: Sequence[Callable[[int], LayerState]],
        blocks: BlockStates[Array],
        query: Array,
    ) -> None:
        super().__init__(embedding, norm, states)
        self._blocks, self._query = blocks, query

    def begin(self, x: Array) -> Hidden:
        self._blocks.left.clear()
        return super().begin(x)

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return self._blocks.given(pick(x), self._query, [pick(each) for each in self._blocks.left])[0]


def rms_normed(math: ArrayMathOf[A], x: A, eps: float) -> A:
    """x / rms(x) over the last dimension."""
    return x * (math.sum(x * x, -1, True) * (1 / x.shape[-1]) + eps) ** -0.5


def block_states_workspace(hidden: int, blocks: int, queries: int) -> Workspace:
    """What blocks leave of a pass, and what layers are given; of a slice, its states and their products."""
    return Workspace(token=(blocks + queries + 2) * hidden, parts=SLICE * (3 * (blocks + 1) + queries) * hidden)
