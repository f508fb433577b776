"""Answers that may differ: tokens do without experts that would have to be read for them, within a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeinf._native import substitute
from moeinf.runtime.experts import StreamedExperts
from moeinf.types import Float32Array, Routing


@dataclass(frozen=True, slots=True)
class Within:
    """How far the distributions of tokens may be from the exact ones: KL(exact || approximate) in nats, the mean."""

    budget: float  # as asked for
    measured: float = 0.0  # on a text
    most_lost: float = 0.0  # of a token's weight in a layer, by experts that are given up; 0: answers are exact

    def __str__(self) -> str:
        return f"approx KL <= {self.budget:g} (measured {self.measured:.2g})"


class ApproximateExperts:
    """Gives the routing of tokens that are decoded to `experts`, but for what they can do without.

    Of the experts of a token that are neither resident nor on their way, the lightest are given up, each for the best
    one behind the chosen ones that is resident, or for none: as many as have together, in a layer, no more of the
    token's weight than `within` allows. Look-ahead is told of what is left, so that nothing is read ahead that would
    then be given up. Prompts are exact.
    """

    def __init__(self, experts: StreamedExperts, states: npt.NDArray[np.uint8], slices: int, within: Within) -> None:
        """states [layers, experts * slices]: those of the table of slots (runtime/cache/table.py)."""
        self._experts, self._states, self._slices = experts, list(states), slices
        self._decodes = False
        self.norm_outputs = experts.norm_outputs
        self.within = within
        self.instead = self.left_out = 0  # experts so far that another one stood in for, or none

    def begin_pass(self, *, decodes: bool) -> None:
        """Says whether all rows of the pass that begins are tokens of answers."""
        self._decodes = decodes and self.within.most_lost > 0

    @property
    def wants_expectations(self) -> bool:
        return self._experts.wants_expectations

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        if self._decodes:
            instead, left_out = self._change(layer, routing)
            self.instead += instead
            self.left_out += left_out
        self._experts.run(layer, hidden, routing, out)

    def expect(self, layer: int, guess: Routing) -> None:
        if self._decodes:
            self._change(layer, guess)
        self._experts.expect(layer, guess)

    def _change(self, layer: int, routing: Routing) -> tuple[int, int]:
        ids, weights, spares = routing
        spare_ids, spare_weights, keeps_sum = (None, None, False) if spares is None else spares
        return substitute(
            self._states[layer],
            self._slices,
            ids,
            weights,
            spare_ids,
            spare_weights,
            keeps_sum=keeps_sum,
            most_lost=self.within.most_lost,
        )
