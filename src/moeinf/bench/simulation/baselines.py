"""Machines without a cache of experts. They are only simulated: live, each reads many times what a cache would.

Both have the methods of SimulatedRun.
"""

from __future__ import annotations

from moeinf.bench.simulation.run import Results, Timing
from moeinf.bench.simulation.simulated_link import Clock
from moeinf.runtime.cache.stats import CacheStats
from moeinf.types import IntArray, MoeShape

NO_CACHE, WHOLE_LAYERS = BASELINES = ("no-cache", "whole-layers")


class NoCache:
    """Reads what each layer needs when it needs it, and keeps nothing."""

    def __init__(self, shape: MoeShape, timing: Timing) -> None:
        self._timing, self._clock, self._stats = timing, Clock(), CacheStats()
        self.results = Results(self._stats, self._clock)

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        stats, read = self._stats, len(experts)
        stats.misses += int(counts.sum())
        stats.demand_reads += read
        stats.demand_bytes += read
        stats.stall_s += read * self._timing.read_s
        self._clock.now += read * self._timing.read_s + self._timing.layer_s


class WholeLayers:
    """Reads every expert of a layer, whatever the routing, and the next layer's while this one computes.

    So do offloaders of dense models (ZeRO-Inference, arXiv 2207.00032, section 6). Two buffers of a layer each: a read
    begins when the read before it has ended and the layer before the running one has been computed.
    """

    def __init__(self, shape: MoeShape, timing: Timing) -> None:
        self._shape, self._timing = shape, timing
        self._clock, self._stats = Clock(), CacheStats()
        self.results = Results(self._stats, self._clock)
        self._ready_s = 0.0  # when the layer that is read ahead has landed
        self._next = 0  # that layer

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        clock, stats, shape = self._clock, self._stats, self._shape
        if layer != self._next or not stats.activations:  # the first of all, or one after layers that were left out
            self._read_ahead(layer)
        waited_s = max(0.0, self._ready_s - clock.now)
        late = int(counts.sum()) if waited_s > 0 else 0
        stats.hits += int(counts.sum()) - late
        stats.misses += late
        stats.late_hits += late
        stats.prefetches_used += len(experts)
        stats.prefetches_wasted += shape.experts_of(layer) - len(experts)
        stats.stall_s += waited_s
        clock.now += waited_s
        self._read_ahead((layer + 1) % shape.num_layers)
        clock.now += self._timing.layer_s

    def _read_ahead(self, layer: int) -> None:
        num_experts = self._shape.experts_of(layer)
        self._next = layer
        self._ready_s = self._clock.now + num_experts * self._timing.read_s
        self._stats.prefetches += num_experts
        self._stats.prefetch_bytes += num_experts


def baseline(name: str, shape: MoeShape, timing: Timing) -> NoCache | WholeLayers:
    """One of BASELINES."""
    return NoCache(shape, timing) if name == NO_CACHE else WholeLayers(shape, timing)
