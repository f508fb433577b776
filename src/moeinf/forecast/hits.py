"""How often a cache of some size will hold the expert that is asked for: by history, or by recorded routing."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from moeinf.engine.stored.hit_record import LEAST_ACTIVATIONS, HitCount
from moeinf.types import JsonObject, MoeShape


@dataclass(frozen=True, slots=True)
class ExpectedHits:
    """Of a token's experts: the share that is resident when asked for, and the share that the disk has to read."""

    hit_rate: float
    read_share: float  # more than what is missed, where guesses are wrong
    source: str  # what they are taken from, for the user


def expected_hits(
    moe: MoeShape, architecture: str, held_experts: float, record: Mapping[int, HitCount], expert_bytes: int
) -> ExpectedHits:
    """held_experts: how many are resident.

    record: of earlier runs (engine/stored/hit_record.py), which counts more than what other models did.
    """
    share = held_experts / moe.total_experts
    if share >= 1:
        return ExpectedHits(1.0, 0.0, f"all {moe.kind} are resident")
    known = {slots: each for slots, each in record.items() if each.activations >= LEAST_ACTIVATIONS}
    if known:
        return _by_history(moe, share, known, expert_bytes)
    rate, source = _by_traces(moe, architecture, share)
    return ExpectedHits(rate, 1 - rate, source)


def _by_history(moe: MoeShape, share: float, known: Mapping[int, HitCount], expert_bytes: int) -> ExpectedHits:
    points = sorted((slots / moe.total_experts, each) for slots, each in known.items() if slots < moe.total_experts)
    shares = [0.0, *(at for at, _ in points), 1.0]
    hits = [0.0, *(each.hits / each.activations for _, each in points), 1.0]
    reads = [1.0, *(each.bytes_read / expert_bytes / each.activations for _, each in points), 0.0]
    measured = sum(each.activations for _, each in points)
    return ExpectedHits(
        between(shares, hits, share), between(shares, reads, share), f"earlier runs of this model, {measured:,} uses"
    )


def _by_traces(moe: MoeShape, architecture: str, share: float) -> tuple[float, str]:
    table = _table()
    if moe.dense:
        return share, "every token uses all layers"
    few = table["few_experts"]
    curves = few["curves"] if moe.num_experts <= few["most"] else table["curves"]
    chosen = [curves[architecture]] if architecture in curves else list(curves.values())
    shares = [0.0, *table["shares"], 1.0]
    rates = [between(shares, [0.0, *curve["hits"], 1.0], share) for curve in chosen]
    return sum(rates) / len(rates), f"recorded routing of {', '.join(curve['trace'] for curve in chosen)}"


def between(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at a place, on straight lines between those of `places`, which ascend."""
    right = min(max(1, bisect_right(places, at)), len(places) - 1)
    low, high = places[right - 1], places[right]
    return values[right - 1] + (values[right] - values[right - 1]) * (at - low) / (high - low)


@cache
def _table() -> JsonObject:
    text = resources.files("moeinf").joinpath("data/hit_curves.json").read_text(encoding="utf-8")
    found: JsonObject = json.loads(text)
    return found
