"""The live classes with a clock in place of a machine: a tier of experts whose reads take time and move nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from moeinf._native import IdleWindow
from moeinf.bench.simulation.simulated_link import Clock, SimulatedLink
from moeinf.errors import UsageError
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.slot_sizes import SlotSizes, equal_slots
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import BoolArray, SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.policy_protocol import EvictionPolicy, Predictor
from moeinf.runtime.prefetch import MEASURED, Prefetcher
from moeinf.types import IntArray, MoeShape, Phase, Profiler


@dataclass(frozen=True, slots=True)
class Timing:
    """What a simulated machine takes for the read of an expert, and for a layer beside its reads."""

    read_s: float = 0.0  # where layers differ in the size of experts: of a read of the mean of these sizes
    layer_s: float = 0.0


UNTIMED: Final = Timing()


@dataclass(slots=True)
class PhaseResult:
    """What a phase did, in all requests together. Where experts have one size, the bytes of the stats count them."""

    stats: CacheStats = field(default_factory=CacheStats)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def token_s(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0


class Results:
    """Sums up phases from what is counted when they begin and end."""

    def __init__(self, stats: CacheStats, clock: Clock) -> None:
        self.of: dict[Phase, PhaseResult] = {}
        self._stats, self._clock = stats, clock
        self._phase: Phase | None = None
        self._before, self._began_s, self._tokens = stats.snapshot(), clock.now, 0

    def begin(self, phase: Phase | None) -> None:
        """Ends the phase that runs; None: and begins no other."""
        if self._phase is not None:
            result = self.of.setdefault(self._phase, PhaseResult())
            result.stats = result.stats.plus(self._stats.since(self._before))
            result.tokens += self._tokens
            result.seconds += self._clock.now - self._began_s
        self._phase = phase
        self._before, self._began_s, self._tokens = self._stats.snapshot(), self._clock.now, 0

    def count_tokens(self, tokens: int) -> None:
        self._tokens += tokens


def one_size(shape: MoeShape) -> SlotSizes:
    """Of slots where all experts are as large: one byte, which is how many experts it is."""
    return equal_slots(1, shape)


class SimulatedRun:
    """A tier of `num_slots` experts, with its own clock and link."""

    def __init__(
        self,
        shape: MoeShape,
        num_slots: int,
        policy: EvictionPolicy,
        predictor: Predictor | None = None,
        timing: Timing = UNTIMED,
        sizes: SlotSizes | None = None,
        admission: str = MEASURED,
    ) -> None:
        """sizes: of the slots; None: all have one. Raises UsageError for too few slots.

        Without a predictor nothing is prefetched. admission: see runtime/prefetch.py.
        """
        if num_slots < shape.top_k:
            raise UsageError(f"{num_slots} slots cannot hold the {shape.top_k} experts of one token")
        self._clock = Clock()
        self._layer_s = timing.layer_s
        self._num_experts = shape.num_experts
        sizes = sizes or one_size(shape)
        mean_bytes = sum(sizes.layer_bytes) / shape.num_layers
        by_key = sizes.by_key(shape.num_experts)
        self._link = link = SimulatedLink(
            self._clock, (timing.read_s * (by_key / mean_bytes)).tolist(), by_key.tolist()
        )
        self._cache = cache = ExpertCache(shape, SlotRegion(None, 0, num_slots, sizes), policy)
        errors = ReadErrors([], shape.num_experts)
        self.tier = ExpertTier(cache, Loader(cache, link), errors, Profiler(self._clock), IdleWindow(self._clock))
        self.results = Results(self.tier.stats, self._clock)
        self._prefetcher = None
        if predictor is not None:
            self._prefetcher = Prefetcher(self.tier, predictor, link, shape, admission=admission)
        self._slot_bytes = cache.table.slot_bytes[:: shape.num_experts].tolist()  # of each layer
        self._at_once = timing == UNTIMED and predictor is None
        self._no_waves = num_slots >= 2 * shape.num_experts  # so many are never more than a visit of many may take

    def load(self, keys: IntArray) -> None:
        """Fills empty slots, before the first visit, with these experts; it takes no time, and is not counted."""
        self._cache.table.assign(keys.tolist())
        self._cache.table.land(keys.tolist())

    def only(self, mine: BoolArray) -> None:
        """Says by key which experts may come here; others are another machine's. Before the first visit."""
        self._cache.only(mine)

    @property
    def now(self) -> float:
        """Seconds of its clock."""
        return self._clock.now

    def wait_until(self, seconds: float) -> None:
        """Lets time pass while nothing runs here; what is read ahead goes on."""
        self._clock.now = max(self._clock.now, seconds)

    def visit(self, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        """What runtime/experts.py does after policy and predictor were told, but for the products."""
        if self._at_once and (num_tokens == 1 or self._no_waves):
            self._visit_at_once(layer, (experts + layer * self._num_experts).tolist(), counts, many=num_tokens > 1)
            return
        with self.tier.visit(layer, experts, counts, num_tokens) as visit:
            if self._prefetcher is not None:
                self._prefetcher.after_routing(visit)
            self._link.waits_for_all = num_tokens == 1 and visit.all_have_slots
            for _ in visit.arrivals():
                pass
        self._clock.now += self._layer_s

    def _visit_at_once(self, layer: int, keys: Sequence[int], counts: IntArray, *, many: bool) -> None:
        """The same where reads take no time and nothing is read ahead: what is absent lands as it is asked for."""
        cache = self._cache
        absent, _, _ = cache.begin_layer(layer, keys, counts, many=many)
        if absent:
            table, stats, count = cache.table, cache.stats, len(absent)
            cache.make_room(absent)
            table.assign(absent)
            table.land(absent)
            stats.demand_reads += count
            stats.demand_bytes += count * self._slot_bytes[layer]
        cache.unpin(keys)
