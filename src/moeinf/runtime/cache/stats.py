"""Counters of the expert cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class CacheStats:
    """What the cache did. An activation is one (token, layer, choice); a prefetch or a byte belongs to one expert read.

    hits + misses == layers * top_k * tokens. A hit is an activation of an expert that was resident when its layer
    was asked; an expert that was still in flight then is a miss, and counts among `late_hits` too.
    """

    hits: int = 0
    misses: int = 0
    late_hits: int = 0  # of the misses: its prefetch was under way
    prefetches: int = 0  # reads submitted ahead of demand
    prefetches_used: int = 0  # used by the time they were counted, late ones among them
    prefetches_wasted: int = 0  # cancelled in flight or evicted unused
    demand_reads: int = 0
    demand_bytes: int = 0
    prefetch_bytes: int = 0
    stall_s: float = 0.0  # compute waited for an expert
    given_back_bytes: int = 0  # of slots, to other processes that needed memory

    @property
    def activations(self) -> int:
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Share of activations that found their expert resident; 0 when there were none."""
        return self.hits / self.activations if self.activations else 0.0

    def snapshot(self) -> CacheStats:
        """Returns a copy that later counting does not change."""
        return CacheStats(**asdict(self))

    def plus(self, other: CacheStats) -> CacheStats:
        """Returns both counted together."""
        return CacheStats(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )

    def since(self, earlier: CacheStats) -> CacheStats:
        """Returns what was counted after `earlier` was taken."""
        return CacheStats(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )


@dataclass(slots=True)
class DecodeStats(CacheStats):
    """Those of a request's decoding, and what caches of as many experts would have hit of the same routing.

    All begin with what was resident then.
    """

    compared: int = 0  # activations that were replayed; 0: none could be
    lru_hits: int = 0
    best_hits: int = 0  # of the cache that knows what comes, than which none hits more (Belady)

    @property
    def lru_hit_rate(self) -> float | None:
        return self.lru_hits / self.compared if self.compared else None

    @property
    def best_hit_rate(self) -> float | None:
        return self.best_hits / self.compared if self.compared else None
