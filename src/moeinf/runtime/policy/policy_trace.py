"""Expert activation matrices: how many tokens each expert of each layer was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.types import IntArray, MoeShape, Phase

Rows = Sequence[tuple[object, int]]  # of a pass: requests, by whatever tells them apart, and how many each has
_NOBODY: Final[Rows] = ((None, 0),)
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


@dataclass(slots=True)
class _Request:
    """What a request that runs has used in its present phase."""

    matrix: ActivationMatrix
    phase: Phase = "prefill"


class RequestRecorder(Listener):
    """Keeps the matrices of running requests, their phases apart (v3, 4.3), and hands them on when they end.

    `begin("prefill")` starts a request, `begin("decode")` its second phase; where there is an encoder,
    `begin("encode")` comes before both. Each ends what ran before. `on_finished` gets the matrix of each phase that ran
    any token, for instance ActivationCollection.add. Requests that run side by side have names, whatever tells them
    apart (None for one alone), and `pass_begins` says whose rows the next routings have.
    """

    def __init__(
        self, shape: MoeShape, on_finished: Callable[[ActivationMatrix], None], rows_at_once: int = ROWS_AT_ONCE
    ) -> None:
        self._shape, self._on_finished = shape, on_finished
        self._rows_at_once = rows_at_once
        self._requests: dict[object, _Request] = {}
        self._rows: Rows = _NOBODY
        self._alone: Rows = self._rows  # whose rows those are that no pass has announced
        self._noted: list[tuple[Rows, int, IntArray]] = []  # whole, so that an error cannot come between their parts
        self._pass_at = 0  # where the notes of the present pass begin

    def begin(self, phase: Phase) -> None:
        self.begin_of(None, phase)

    def begin_of(self, name: object, phase: Phase) -> None:
        """As `begin`, of one of several requests."""
        running = self._requests.get(name)
        if running is None or not phase == running.phase == "decode":  # else it is the next step of the same phase
            self.finish(name)
            self._requests[name] = _Request(ActivationMatrix(self._shape), phase)
        self._alone = self._rows = ((name, 0),)

    def pass_begins(self, rows: Rows) -> None:
        """The next routings are those of so many rows of each of these requests, in order."""
        self._rows, self._pass_at = rows, len(self._noted)

    def pass_ends(self, *, whole: bool) -> None:
        """whole: False for a pass that was given up, and does not count."""
        if not whole:
            del self._noted[self._pass_at :]
        self._rows = self._alone

    def observe(self, layer: int, ids: IntArray) -> None:
        self._noted.append((self._rows, layer, ids.copy()))
        if len(self._noted) >= self._rows_at_once:
            self._add_up()

    def finish(self, name: object = None) -> None:
        """Ends a request; a second call does nothing."""
        self._add_up()
        running = self._requests.pop(name, None)
        if self._alone[0][0] is name:  # which may hold the network, and is not kept alive from here
            self._alone = self._rows = _NOBODY
        if running is not None and running.matrix.counts.any():
            self._on_finished(running.matrix)

    def _add_up(self) -> None:
        noted, self._noted, self._pass_at = self._noted, [], 0
        of_requests: dict[object, tuple[list[int], list[IntArray]]] = {}
        for rows, layer, ids in noted:
            for name, own in _divided(rows, ids):
                layers, routings = of_requests.setdefault(name, ([], []))
                layers.append(layer)
                routings.append(own)
        for name, (layers, routings) in of_requests.items():
            if name not in self._requests:
                self._requests[name] = _Request(ActivationMatrix(self._shape))
            self._requests[name].matrix.record_all(layers, routings)


def _divided(rows: Rows, ids: IntArray) -> Iterator[tuple[object, IntArray]]:
    """The routing [rows, top_k] of each request."""
    if len(rows) == 1:
        yield rows[0][0], ids
        return
    start = 0
    for name, count in rows:
        yield name, ids[start : start + count]
        start += count
