"""How often earlier runs of a model found experts in memory, by the number of slots, kept beside its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Final

from moeinf.errors import MALFORMED, StoreError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.store.files import parse_json_object, publish, read_small
from moeinf.store.library import StoredModel
from moeinf.store.processes.locks import locked

FILE: Final = "hits.json"
LEAST_ACTIVATIONS: Final = 1000  # of a number of slots, before it tells anything
_MOST_ACTIVATIONS: Final = 1 << 20  # beyond, what is older counts half
_MOST_SLOTS: Final = 16  # numbers of slots that are remembered: the latest


@dataclass(frozen=True, slots=True)
class HitCount:
    """What single tokens asked of a cache of one size."""

    activations: int
    hits: int
    bytes_read: int  # ahead of demand, too

    def plus(self, stats: CacheStats) -> HitCount:
        halved = self.activations > _MOST_ACTIVATIONS
        before = [each // 2 if halved else each for each in astuple(self)]
        return HitCount(
            before[0] + stats.activations, before[1] + stats.hits, before[2] + stats.demand_bytes + stats.prefetch_bytes
        )


def load_hits(stored: StoredModel) -> dict[int, HitCount]:
    """What is known by the number of slots, the latest last; {} where nothing is, or where it cannot be read."""
    path = stored.path / FILE
    try:
        value = parse_json_object(read_small(path, 1 << 16), str(path), StoreError)
        found = {int(slots): HitCount(*(int(each) for each in counts)) for slots, counts in value.items()}
    except (OSError, StoreError, *MALFORMED):
        return {}
    return {slots: each for slots, each in found.items() if 0 <= each.hits <= each.activations and each.bytes_read >= 0}


def record_hits(stored: StoredModel, num_slots: int, stats: CacheStats) -> None:
    """Adds what was counted while single tokens were computed. A store that cannot be written learns nothing."""
    if not stats.activations or not os.access(stored.path, os.W_OK):
        return
    try:
        with locked(stored.path, folder=True):
            known: Mapping[int, HitCount] = load_hits(stored)
            latest = {slots: each for slots, each in known.items() if slots != num_slots}
            latest[num_slots] = known.get(num_slots, HitCount(0, 0, 0)).plus(stats)
            kept = list(latest.items())[-_MOST_SLOTS:]
            publish(stored.path / FILE, json.dumps({str(slots): astuple(each) for slots, each in kept}).encode())
    except OSError:
        return  # a forecast is the poorer for it, and nothing else
