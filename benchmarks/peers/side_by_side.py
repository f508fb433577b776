"""The figures of a comparison as a Markdown table: medians, ratios, shares of the memory bandwidth."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PROFILE = (
    "expert_hit_rate",
    "stall_s",
    "total_s",
    "bytes_per_token",
    "read_gb_per_s",
    "disk_gb_per_s",
    "peak_rss_bytes",
    "experts",
    "memory_gb_per_s",
    "profile_ms",
)


class Request(NamedTuple):
    cold: bool  # the first of its process
    prefill: float  # tok/s
    decode: float


@dataclass
class Side:
    """All that the processes of one engine said about one model."""

    requests: list[Request] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # of the last process: bytes of weights a token, profile

    def rates(self, test: str, cold: bool) -> list[float]:
        return [getattr(request, test) for request in self.requests if request.cold is cold]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


Sides = Mapping[tuple[str, str], Side]  # by model and engine
OURS, PEER, PEER_UNPACKED = "moeinf", "llama.cpp", "llama.cpp --no-repack"
ENGINES = (OURS, PEER, PEER_UNPACKED)


def markdown(sides: Sides, prompt: int, decode: int) -> str:
    """A line for each model and test, with the ratio to llama.cpp as it is by default, and to the better of its two.

    Below: shares of the memory bandwidth, failures, and where the time of moeinf's decode went.
    """
    models = list(dict.fromkeys(model for model, _ in sides))
    lines = [
        row("model", "test", "request", *(f"{engine} tok/s" for engine in ENGINES), "ratio", "to the better"),
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        for test, tokens in (("prefill", prompt), ("decode", decode)):
            for cold in (True, False):
                rates = [sides[model, e].rates(test, cold) if (model, e) in sides else [] for e in ENGINES]
                if any(rates):
                    lines.append(
                        row(
                            model,
                            f"{test} {tokens}",
                            "first" if cold else "later",
                            *map(spread, rates),
                            ratio(rates[0], rates[1] or rates[2]),
                            ratio(rates[0], max(rates[1:], key=median)),
                        )
                    )
    memory = median([side.row["memory_gb_per_s"] for side in sides.values() if side.row.get("memory_gb_per_s")])
    lines += ["", f"| model | weights a token, later decodes: {' | '.join(ENGINES)} |", "|---|---|---|---|"]
    lines += [row(model, *(_bandwidth(sides.get((model, e)), memory) for e in ENGINES)) for model in models]
    lines += ["", f"Memory gives {memory:.1f} GB/s (median of moeinf's processes)."]
    lines += [
        f"{engine} on {model}: {len(side.failures)} of its processes failed: {side.failures[-1]}"
        for (model, engine), side in sides.items()
        if side.failures
    ]
    lines += [
        f"{model}: {json.dumps({name: side.row[name] for name in PROFILE if name in side.row})}"
        for (model, engine), side in sides.items()
        if engine == OURS
    ]
    return "\n".join(lines)


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def ratio(mine: list[float], theirs: list[float]) -> str:
    return f"{median(mine) / median(theirs):.2f}" if mine and theirs else ""


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}, n={len(values)})"


def _bandwidth(side: Side | None, memory: float) -> str:
    """Bytes of weights used, in GB/s, and its share of what memory gives."""
    rates = side.rates("decode", False) if side else []
    used = side.row.get("weight_bytes_per_token", 0) if side else 0
    if not (used and rates):
        return "-"
    rate = median(rates) * used / 1e9
    share = f", {100 * rate / memory:.0f} %" if memory else ""
    return f"{used / 1e6:.0f} MB, {rate:.1f} GB/s{share}"
