"""The hot path: the experts of one layer, computed from wherever they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.routing_check import RoutingCheck
from moeinf.types import Float32Array, IntArray, Routing


class ExpertKernel(Protocol):
    """Computes experts whose blocks lie in one memory, in any order; the native one, and a slow one in tests.

    One layer is begin, any number of compute, finish. A begin after an unfinished one starts anew.
    """

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        """Returns the experts routed to, ascending, and how many tokens each has.

        hidden [tokens, H]; ids, weights [tokens, k]. layer: experts of one layer may have other formats than another's.
        """
        ...

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        """Computes the outputs of `experts`, whose blocks begin at `offsets` of the memory."""
        ...

    def finish(self, out: Float32Array) -> None:
        """Adds the weighted outputs to out [tokens, H] in the order of the routing. Every expert was computed."""
        ...

    def norm_outputs(self, layer: int, scale: Float32Array, eps: float) -> None:
        """See moeinf.models.layers.protocol.ExpertsOf."""
        ...


class StreamedExperts:
    """Computes experts in the slots of a tier; what is missing is read while what is there computes.

    The result does not depend on what was resident: the kernel sums the outputs in the order of the routing, not of
    arrival. Where every expert is resident nothing is predicted and nothing evicted, so `advisers` are not told then.
    That some were left out they hear in front of the next.
    """

    def __init__(
        self,
        tier: ExpertTier,
        kernel: ExpertKernel,
        listeners: Sequence[Listener],
        advisers: Sequence[Listener],
        prefetcher: Prefetcher | None,
        model: str = "MODEL",
    ) -> None:
        """listeners are told every routing, advisers (policy, predictor) those with which something can be missing.

        model: its name, for errors.
        """
        self._check = RoutingCheck(model)
        self._tier = tier
        self.kernel = kernel  # whoever gathers what experts are given puts another in front of it
        self._listeners = listeners
        self._advisers = advisers
        self._prefetcher = prefetcher
        self._expecting = [each for each in (*listeners, *advisers) if each.wants_guesses]
        self._profiler = tier.profiler
        self._advisers_missed = False  # a routing, since they were told one

    @property
    def wants_expectations(self) -> bool:
        prefetcher = self._prefetcher
        return prefetcher is not None and prefetcher.wants_expectations and not self._tier.all_resident

    def norm_outputs(self, layer: int, scale: Float32Array, eps: float) -> None:
        self.kernel.norm_outputs(layer, scale, eps)

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        """out += the experts' weighted sum; hidden and out [tokens, H]. Blocks for missing experts.

        Raises ExpertReadError, NotFiniteError; the next run may come after it, as after any exception.
        """
        kernel, profiler, ids = self.kernel, self._profiler, routing.ids
        self._check(layer, ids, routing.weights)
        experts, counts = kernel.begin(hidden, ids, routing.weights, layer)
        for listener in self._listeners:
            listener.routed(layer, ids, routing.weights)
        with self._tier.lock:
            if self._tier.all_resident:
                self._advisers_missed = True
                num_here = len(experts) if len(ids) == 1 else int(counts.sum())  # other ranks may have some
                offsets = self._tier.hits(layer, experts, num_here)
                profiler.lap("policy")
                kernel.compute(experts, offsets)
            else:
                self._stream(layer, experts, counts, ids)
        kernel.finish(out)
        profiler.lap("experts")

    def _stream(self, layer: int, experts: IntArray, counts: IntArray, ids: IntArray) -> None:
        tier, kernel, profiler = self._tier, self.kernel, self._profiler
        for adviser in self._advisers:
            if self._advisers_missed:
                adviser.restart()
            adviser.observe(layer, ids)
        self._advisers_missed = False
        with tier.visit(layer, experts, counts, len(ids)) as visit:
            if self._prefetcher is not None:
                self._prefetcher.after_routing(visit)
            profiler.lap("policy")
            for landed, offsets in visit.arrivals():
                profiler.lap("policy")
                kernel.compute(landed, offsets)
                profiler.lap("experts")

    def expect(self, layer: int, guess: Routing) -> None:
        tell_guess(self._expecting, layer, guess.ids, guess.weights)


def tell_guess(listeners: Sequence[Listener], layer: int, ids: IntArray, weights: Float32Array) -> None:
    """Tells the model's guess at the routing of a later layer, unless it is no number: that layer will say so."""
    if math.isfinite(weights.sum()):
        for listener in listeners:
            listener.expect(layer, ids, weights)
