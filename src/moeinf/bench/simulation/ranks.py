"""Several simulated machines that compute a layer together: a run of a replay, as SimulatedRun is one of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.bench.simulation.link import Clock
from moeinf.bench.simulation.network import SEND_S, Gather, Network, answered_at, asked_at
from moeinf.bench.simulation.run import Results, SimulatedRun, Timing
from moeinf.runtime.cache.sizes import SlotSizes
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.protocol import EvictionPolicy, Predictor
from moeinf.types import IntArray, MoeShape

_ID_BYTES: Final = 4
_HEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Star:
    """Machines of one kind around rank 0, each with so many slots."""

    num_ranks: int
    network: Network
    gather: Gather
    row_bytes: float  # of one token's hidden state, or of one expert's output for it


@dataclass(slots=True)
class Balance:
    """How evenly layers are spread over the ranks."""

    busiest: int = 0  # experts of the rank that has most, over all layers of single tokens
    even: float = 0.0  # what each would have, if all had as many

    @property
    def imbalance(self) -> float:
        """How many times more than an even share the busiest rank of a layer has."""
        return self.busiest / self.even if self.even else 1.0


class SimulatedRanks:
    """moeinf.bench.simulation.replay.Run of a star. Every layer begins on all ranks when the one before has ended."""

    def __init__(
        self,
        shape: MoeShape,
        num_slots: int,
        star: Star,
        owner: IntArray,
        second: IntArray,
        policy: EvictionPolicy,
        predictor: Predictor | None,
        timing: Timing,
        sizes: SlotSizes | None = None,
    ) -> None:
        """owner [layers, experts]: the rank that has each expert; second: another one that has it too, or the same."""
        self.balance = Balance()
        self._star, self._layer_s, self._top_k = star, timing.layer_s, shape.top_k
        self._owner, self._second = owner, second
        self._clock, self._stats = Clock(), CacheStats()
        self.results = Results(self._stats, self._clock)
        reads = Timing(timing.read_s, 0.0)
        self._ranks = [SimulatedRun(shape, num_slots, policy, predictor, reads, sizes) for _ in range(star.num_ranks)]
        for rank, run in enumerate(self._ranks):
            run.only(((owner == rank) | (second == rank)).ravel())

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        ranks = self._chosen(layer, experts)
        at = [np.flatnonzero(ranks == rank) for rank in range(self._star.num_ranks)]
        if num_tokens == 1:
            self.balance.busiest += max(map(len, at))
            self.balance.even += len(experts) / self._star.num_ranks
        others = [rank for rank in range(1, len(at)) if len(at[rank])]
        now = self._clock.now
        request = _HEAD_BYTES + num_tokens * (self._star.row_bytes + 3 * _ID_BYTES * self._top_k)
        network, gather = self._star.network, self._star.gather
        begins = asked_at(network, now, [request] * len(others), gather)
        ends = []
        for rank, begin_s in zip((0, *others), (now, *begins), strict=True):
            ends.append(self._visit(rank, begin_s, layer, experts[at[rank]], counts[at[rank]], num_tokens))
        rows = [int(counts[at[rank]].sum()) for rank in others]
        end_s = max(ends[0], now + len(others) * SEND_S)
        if others:
            end_s = max(end_s, answered_at(network, ends[1:], rows, num_tokens, self._star.row_bytes, gather))
        self._clock.now = end_s + self._layer_s

    def _chosen(self, layer: int, experts: IntArray) -> IntArray:
        """The rank that computes each: of two that have an expert, the one that has fewer of this layer so far."""
        first: IntArray = self._owner[layer, experts]
        second: IntArray = self._second[layer, experts]
        if (first == second).all():
            return first
        load = np.bincount(first[first == second], minlength=self._star.num_ranks)
        chosen: IntArray = first.copy()
        for place in np.flatnonzero(first != second).tolist():
            chosen[place] = min(first[place], second[place], key=load.__getitem__)
            load[chosen[place]] += 1
        return chosen

    def _visit(
        self, rank: int, begin_s: float, layer: int, experts: IntArray, counts: IntArray, num_tokens: int
    ) -> float:
        """Returns when the rank has all that it needs of the layer."""
        run = self._ranks[rank]
        run.wait_until(begin_s)
        before = run.tier.stats.snapshot()
        run.visit(layer, experts, counts, num_tokens)
        done = run.tier.stats.since(before)
        stats = self._stats
        stats.hits += done.hits
        stats.misses += done.misses
        stats.late_hits += done.late_hits
        stats.demand_reads += done.demand_reads
        stats.prefetches += done.prefetches
        return run.now


def seconds_of(owner: IntArray, uses: IntArray, percent: float, num_ranks: int) -> IntArray:
    """Where the second copies are: of so many percent of the experts, those that were used most; each on the next rank.

    owner, uses [layers, experts].
    """
    count = round(owner.size * percent / 100)
    second = owner.ravel().copy()
    hottest = np.argsort(-uses.ravel(), kind="stable")[:count]
    second[hottest] = (second[hottest] + 1 + hottest % max(1, num_ranks - 1)) % num_ranks
    copies: IntArray = second.reshape(owner.shape)
    return copies


def uses_of(experts: IntArray, shape: MoeShape, tokens: Sequence[int]) -> IntArray:
    """How often each expert was used by these tokens of a trace, [layers, experts]; experts [tokens, layers, top_k]."""
    chosen = experts[list(tokens)]
    uses = np.zeros((shape.num_layers, shape.num_experts), np.int64)
    for layer in range(shape.num_layers):
        used = chosen[:, layer].ravel()
        uses[layer] = np.bincount(used[used >= 0], minlength=shape.num_experts)
    return uses
