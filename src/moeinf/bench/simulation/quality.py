"""How good predictions are, by their distance in layers; nothing is read, and the policy's cache runs beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.bench.simulation.run import SimulatedRun
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.policy.priority import layer_proximity, prefetch_priority
from moeinf.runtime.prefetch import AT_LEAST
from moeinf.types import FloatArray, IntArray, MoeShape

FARTHEST: Final = 4  # layers


@dataclass(frozen=True, slots=True)
class Quality:
    """Of the guesses at the layer `distance` behind the one that ran; nan where there was nothing to count.

    An expert is named where its prefetch priority is above AT_LEAST.
    """

    distance: int
    recall: float  # share of the layer's experts that are among the top_k likeliest
    precision: float  # share of the named experts that the layer used
    named: float  # experts named for a layer
    used: float  # share of those named and not resident that the layer used: of what would be read ahead
    read: float  # experts named and not resident for a layer


class QualityMeter:
    """Compares predictions of single tokens with the truth."""

    def __init__(self, shape: MoeShape, run: SimulatedRun, predictor: Predictor) -> None:
        """run: whose cache says what would not have to be read."""
        self._shape, self._run, self._predictor = shape, run, predictor
        self._proximity = layer_proximity(shape.num_layers)
        self._sums: FloatArray = np.zeros((FARTHEST, 6))  # layers, right of top_k, named, right of them, and absent

    def compare(self, layer: int, experts: IntArray) -> None:
        """moeinf.bench.simulation.replay.Meter; a layer that the token does not visit has experts -1."""
        likelihood = self._predictor.predict(layer)
        if likelihood is None or not len(likelihood):
            return
        rows = likelihood[:FARTHEST]
        count = len(rows)
        true = np.zeros(rows.shape, bool)
        ahead = experts[layer + 1 : layer + 1 + count]
        np.put_along_axis(true, np.maximum(ahead, 0), ahead >= 0, axis=1)
        top = np.argpartition(-rows, self._shape.top_k - 1, axis=1)[:, : self._shape.top_k]
        likely = np.take_along_axis(rows, top, axis=1) > 0
        named = prefetch_priority(rows, self._proximity) > AT_LEAST
        absent = named & ~self._run.tier.prefetches.known(layer + 1, count)
        self._sums[:count] += np.stack(
            [
                rows.any(axis=1),
                (np.take_along_axis(true, top, axis=1) & likely).sum(axis=1),
                named.sum(axis=1),
                (named & true).sum(axis=1),
                absent.sum(axis=1),
                (absent & true).sum(axis=1),
            ],
            axis=1,
        )

    def result(self) -> list[Quality]:
        found = []
        for index, (layers, right, named, named_right, read, used) in enumerate(self._sums.tolist()):
            if layers:
                found.append(
                    Quality(
                        index + 1,
                        right / (layers * self._shape.top_k),
                        named_right / named if named else np.nan,
                        named / layers,
                        used / read if read else np.nan,
                        read / layers,
                    )
                )
        return found
