"""Expert activation matrices: how many tokens each expert of each layer was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.types import IntArray, MoeShape, Phase

ROWS_AT_ONCE: Final = 4096  # routings kept before they are counted together: a call of numpy for each costs more


def count_ids(ids: IntArray, num_experts: int) -> IntArray:
    """Tokens given to each expert by the routing `ids` [tokens, top_k] of one layer."""
    counts: IntArray = np.bincount(ids.ravel(), minlength=num_experts)
    return counts


class ActivationMatrix:
    """EAM of arXiv 2401.14361 v3, 4.2: counts[layer, expert] = tokens routed there. A row sums to tokens * top_k."""

    def __init__(self, shape: MoeShape) -> None:
        self.shape = shape
        self.counts: IntArray = np.zeros((shape.num_layers, shape.num_experts), np.int64)

    def record(self, layer: int, ids: IntArray) -> None:
        """Adds the routing `ids` [tokens, top_k] of `layer`."""
        if len(ids) == 1:
            self.counts[layer, ids[0]] += 1  # the experts of one token are distinct
        else:
            self.counts[layer] += count_ids(ids, self.shape.num_experts)

    def record_all(self, layers: Sequence[int], routings: Sequence[IntArray]) -> None:
        """`record` of many routings [tokens, top_k], the n-th of the n-th layer given, in one call of numpy."""
        num_experts = self.shape.num_experts
        first_keys = np.repeat(np.array(layers) * num_experts, [ids.size for ids in routings])
        keys = first_keys + np.concatenate([ids.ravel() for ids in routings])
        self.counts += np.bincount(keys, minlength=self.counts.size).reshape(self.counts.shape)

    def row_sums(self) -> IntArray:
        """Activations recorded for each layer [layers]; zero marks a layer that has not run."""
        sums: IntArray = self.counts.sum(axis=1)
        return sums

    def clear(self) -> None:
        self.counts[:] = 0


class RequestRecorder(Listener):
    """Keeps the matrices of the running request, its phases apart (v3, 4.3), and hands them on when it ends.

    `begin("prefill")` starts a request, `begin("decode")` its second phase; where there is an encoder,
    `begin("encode")` comes before both. Each ends what ran before. `on_finished` gets the matrix of each phase that ran
    any token, for instance ActivationCollection.add.
    """

    def __init__(
        self, shape: MoeShape, on_finished: Callable[[ActivationMatrix], None], rows_at_once: int = ROWS_AT_ONCE
    ) -> None:
        self._on_finished = on_finished
        self._rows_at_once = rows_at_once
        self._matrix = ActivationMatrix(shape)
        self._noted: list[tuple[int, IntArray]] = []  # pairs, so that an error cannot come between their halves
        self._phase: Phase = "prefill"

    def begin(self, phase: Phase) -> None:
        if phase == "decode" and self._phase == "decode":
            return  # the next step of the same phase
        self.finish()
        self._phase = phase

    def observe(self, layer: int, ids: IntArray) -> None:
        self._noted.append((layer, ids.copy()))
        if len(self._noted) >= self._rows_at_once:
            self._add_up()

    def finish(self) -> None:
        """Ends the request; a second call does nothing."""
        self._add_up()
        if self._matrix.counts.any():
            finished, self._matrix = self._matrix, ActivationMatrix(self._matrix.shape)
            self._on_finished(finished)
        self._phase = "prefill"

    def _add_up(self) -> None:
        if self._noted:
            noted, self._noted = self._noted, []
            self._matrix.record_all([layer for layer, _ in noted], [ids for _, ids in noted])
