"""The hot path: the experts of one layer, computed from wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from moeinf.laps import Laps
from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.tiers import HostTier
from moeinf.runtime.trace import Phase
from moeinf.types import IntArray, Routing


class Observer(Protocol):
    """The eviction policy, the predictor and the recorder: each is told every routing, in order."""

    def begin(self, phase: Phase) -> None: ...

    def observe(self, layer: int, ids: IntArray) -> None: ...


ExpertWeights = Sequence[Tensor]  # in the order of the block: gate, up, down
ExpertFunction = Callable[..., Tensor]  # (x [tokens, hidden], *weights) -> [tokens, hidden]


class ResidentExperts:
    """Every expert in memory: the slow, obvious oracle of StreamedExperts."""

    wants_expectations = False

    def __init__(self, weights: Callable[[int, int], ExpertWeights], compute: ExpertFunction) -> None:
        self._weights = weights
        self._compute = compute

    def run(self, layer: int, hidden: Tensor, routing: Routing) -> Tensor:
        outputs = _outputs(hidden, routing)
        for expert in np.unique(routing.ids.numpy()).tolist():
            tokens, places = (routing.ids == expert).nonzero(as_tuple=True)
            outputs[tokens, places] = self._compute(hidden[tokens], *self._weights(layer, expert))
        return combine(outputs, routing.weights)

    def expect(self, layer: int, guess: Routing) -> None:
        pass


class StreamedExperts:
    """Experts in the slots of a tier; what is missing is read while what is there computes.

    The result does not depend on what was resident: every expert sees the same rows in one call, and the outputs
    are summed in the order of the routing, not of arrival.
    """

    def __init__(self, tier: HostTier, observers: Sequence[Observer], prefetcher: Prefetcher | None,
                 compute: ExpertFunction, laps: Laps) -> None:
        self._tier = tier
        self._observers = observers
        self._prefetcher = prefetcher
        self._compute = compute
        self._laps = laps
        self.wants_expectations = prefetcher is not None and prefetcher.wants_expectations

    def run(self, layer: int, hidden: Tensor, routing: Routing) -> Tensor:
        """hidden and result [tokens, hidden]. Blocks for missing experts; raises ExpertReadError."""
        ids = routing.ids.numpy()
        experts, rows = group(ids)
        for observer in self._observers:
            observer.observe(layer, ids)
        self._tier.request(layer, experts, np.array([len(places) for places in rows]))
        if self._prefetcher is not None:
            self._prefetcher.after_routing(layer)
        self._laps.lap("policy")
        outputs = _outputs(hidden, routing)
        flat = outputs.view(-1, hidden.shape[1])
        for expert, weights in self._tier.arrivals():
            chosen = rows[int(np.searchsorted(experts, expert))]
            x = hidden if len(hidden) == 1 else hidden[chosen // ids.shape[1]]
            flat[chosen] = self._compute(x, *weights)
            self._laps.lap("experts")
        return combine(outputs, routing.weights)

    def expect(self, layer: int, guess: Routing) -> None:
        assert self._prefetcher is not None
        self._prefetcher.expect(layer, guess.ids.numpy(), guess.weights.double().numpy())


def group(ids: IntArray) -> tuple[IntArray, list[Tensor]]:
    """Distinct experts of ids [tokens, top_k], ascending, and for each its places in ids.ravel(), ascending."""
    flat = ids.ravel()
    order = np.argsort(flat, kind="stable")
    experts, starts = np.unique(flat[order], return_index=True)
    places = np.split(order, starts[1:])
    return experts, [torch.from_numpy(p) for p in places]


def combine(outputs: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over the chosen experts in float32, best expert first: [tokens, k, hidden] -> [tokens, hidden]."""
    wide = weights.float()
    total = outputs[:, 0].float() * wide[:, :1]
    for place in range(1, outputs.shape[1]):
        total.addcmul_(outputs[:, place].float(), wide[:, place : place + 1])
    return total.to(outputs.dtype)


def _outputs(hidden: Tensor, routing: Routing) -> Tensor:
    return torch.empty((*routing.ids.shape, hidden.shape[1]), dtype=hidden.dtype)
