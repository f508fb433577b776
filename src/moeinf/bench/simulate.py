"""Replays recorded routing through the policy classes that run live, with a cache of which only the contents exist."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf.errors import UsageError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eviction import EvictionPolicy, choose_victims
from moeinf.runtime.policy.predictors import Predictor
from moeinf.runtime.policy.priority import layer_proximity, prefetch_priority, select_prefetches
from moeinf.runtime.policy.trace import Phase, RequestRecorder
from moeinf.types import FloatArray, IntArray, MoeShape

BOUND: Final = "belady"  # knows the future: no policy hits more often


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded routing: experts [tokens, layers, top_k]; request r has the tokens offsets[r] .. offsets[r + 1]."""

    name: str
    shape: MoeShape
    experts: IntArray
    offsets: IntArray

    @property
    def num_tokens(self) -> int:
        return len(self.experts)


def load_trace(folder: Path, max_tokens: int | None = None) -> Trace:
    """Reads the first `max_tokens` tokens of `folder`/routing.npz. Raises UsageError when that is no trace."""
    path = folder / "routing.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            experts, offsets = archive["experts"][:max_tokens].astype(np.int64), archive["offsets"].astype(np.int64)
            shape = MoeShape(experts.shape[1], int(archive["n_experts"]), int(archive["top_k"]))
    except FileNotFoundError:
        raise UsageError(f"no trace in {folder}: it has no routing.npz") from None
    except (ValueError, KeyError, IndexError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a routing trace ({error})") from error
    fits = experts.ndim == 3 and experts.shape[2] == shape.top_k and experts.size
    if not fits or not 0 <= experts.min() <= experts.max() < shape.num_experts:
        raise UsageError(f"{path} is not a routing trace (experts do not fit n_experts and top_k)")
    if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise UsageError(f"{path} is not a routing trace (offsets do not ascend from 0)")
    return Trace(folder.name, shape, experts, np.unique(np.minimum(offsets, len(experts))))


class Belady:
    """The bound: out goes the expert whose next use really is last. Needs the trace that will be observed."""

    name = BOUND

    def __init__(self, trace: Trace) -> None:
        tokens, layers, _ = trace.experts.shape
        never = tokens * layers * 2
        upcoming = np.full((layers, trace.shape.num_experts), never, np.float64)
        self._next_use = np.empty(trace.experts.shape)
        rows = np.arange(layers)[:, None]
        for token in range(tokens - 1, -1, -1):
            self._next_use[token] = upcoming[rows, trace.experts[token]]
            upcoming[rows, trace.experts[token]] = token * layers + rows
        self._scores: FloatArray = -upcoming
        self._token = np.zeros(layers, np.int64)

    def begin(self, phase: Phase) -> None:
        pass

    def observe(self, layer: int, ids: IntArray) -> None:
        token = self._token[layer]
        self._scores[layer, ids] = -self._next_use[token : token + len(ids), layer]  # of repeated ids the last counts
        self._token[layer] += len(ids)

    def keep_scores(self, layer: int) -> FloatArray:
        return self._scores


class CacheModel:
    """The contents of a cache of `num_slots` experts, filled by demand and by prefetch."""

    def __init__(self, shape: MoeShape, num_slots: int) -> None:
        if num_slots < shape.top_k:
            raise UsageError(f"{num_slots} slots cannot hold the {shape.top_k} experts of one token")
        self.stats = CacheStats()
        self.resident: npt.NDArray[np.bool_] = np.zeros((shape.num_layers, shape.num_experts), np.bool_)
        self._unused: npt.NDArray[np.bool_] = np.zeros_like(self.resident)  # prefetched, and not used since
        self._awaited: npt.NDArray[np.bool_] = np.zeros_like(self.resident)  # prefetched, and its layer has not run
        self._num_slots = num_slots
        self._num_resident = 0

    def demand(self, layer: int, ids: IntArray, scores: FloatArray) -> None:
        """Runs `layer` with the routing `ids` [tokens, top_k]; afterwards what the slots can hold of it is resident."""
        needed = np.unique(ids)
        hits = int(self.resident[layer, ids].sum())
        self.stats.hits += hits
        self.stats.misses += ids.size - hits
        self.stats.prefetches_used += int(self._unused[layer, needed].sum())
        self._unused[layer, needed] = False
        self._awaited[layer] = False
        missing = needed[~self.resident[layer, needed]]
        self.stats.demand_reads += len(missing)
        room = self._num_slots - int(self.resident[layer, needed].sum())
        missing = missing[np.argsort(-scores[layer, missing], kind="stable")[:room]]  # the rest passes through
        evictable = self.resident & ~self._awaited  # prefetched experts stay until their layer has run,
        evictable[layer, needed] = False
        if self._num_slots - self._num_resident + int(evictable.sum()) < len(missing):
            evictable |= self._awaited  # unless demand needs the slot
        self._admit(np.full(len(missing), layer), missing, evictable, scores)

    def prefetch(self, layer: int, ids: IntArray, priorities: FloatArray, budget: int, scores: FloatArray) -> None:
        """Loads up to `budget` experts of the layers behind `layer`, whose routing `ids` may not be evicted.

        priorities [n, E]: of the n layers behind it.
        """
        evictable = self.resident & ~self._awaited
        evictable[layer, ids] = False
        room = self._num_slots - self._num_resident + int(evictable.sum())
        resident = self.resident[layer + 1 : layer + 1 + len(priorities)]
        chosen = select_prefetches(priorities, resident, min(budget, room))
        if chosen:
            ahead, experts = np.divmod(chosen, priorities.shape[1])
            layers = layer + 1 + ahead
            self._admit(layers, experts, evictable, scores)
            self._unused[layers, experts] = self._awaited[layers, experts] = True
            self.stats.prefetches += len(chosen)

    def _admit(self, layers: IntArray, experts: IntArray, evictable: npt.NDArray[np.bool_], scores: FloatArray) -> None:
        surplus = max(0, self._num_resident + len(experts) - self._num_slots)
        for victim in choose_victims(scores, evictable, surplus):
            self.stats.prefetches_wasted += int(self._unused[victim])
            self._unused[victim] = self._awaited[victim] = self.resident[victim] = False
        self.resident[layers, experts] = True
        self._num_resident += len(experts) - surplus


def visits(trace: Trace, prefill_tokens: int = 0) -> Iterator[tuple[Phase | None, int, IntArray]]:
    """(phase that begins now or None, layer, ids [tokens, top_k]) in the order in which a model would run.

    The first `prefill_tokens` of a request go through together, the others one by one.
    """
    for start, end in zip(trace.offsets[:-1].tolist(), trace.offsets[1:].tolist(), strict=True):
        passes = [(start, min(start + prefill_tokens, end))] if prefill_tokens else []
        passes += [(token, token + 1) for token in range(start + prefill_tokens, end)]
        for number, (first, last) in enumerate(passes):
            for layer in range(trace.shape.num_layers):
                begins: Phase | None = None
                if layer == 0 and number < 2:
                    begins = "prefill" if number == 0 else "decode"
                yield begins, layer, trace.experts[first:last, layer]


def replay(
    trace: Trace,
    num_slots: Sequence[int],
    policy: EvictionPolicy,
    recorder: RequestRecorder | None = None,
    predictor: Predictor | None = None,
    prefetch_per_visit: int = 0,
    prefill_tokens: int = 0,
) -> list[CacheStats]:
    """What caches of these sizes do under `policy`, all in one pass; no cache changes what the policy sees.

    After each layer, `prefetch_per_visit` experts are read ahead by `predictor`: the link's idle time, as a number.
    """
    caches = [CacheModel(trace.shape, slots) for slots in num_slots]
    observers = [observer for observer in (recorder, policy, predictor) if observer is not None]
    proximity = layer_proximity(trace.shape.num_layers)
    for begins, layer, ids in visits(trace, prefill_tokens):
        if begins:
            for observer in observers:
                observer.begin(begins)
        for observer in observers:
            observer.observe(layer, ids)
        scores = policy.keep_scores(layer)
        likelihood = predictor.predict(layer) if predictor is not None and prefetch_per_visit else None
        priorities = prefetch_priority(likelihood, proximity) if likelihood is not None else None
        for cache in caches:
            cache.demand(layer, ids, scores)
            if priorities is not None:
                cache.prefetch(layer, ids, priorities, prefetch_per_visit, scores)
    return [cache.stats for cache in caches]
