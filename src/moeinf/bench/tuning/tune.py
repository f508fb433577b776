"""From recorded routing to a network beside the store: the earlier requests train it, the later ones measure it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.bench.simulation.replay import SimulatedTier, replay
from moeinf.bench.simulation.simulate import slots_of
from moeinf.bench.tuning.lessons import lessons_of
from moeinf.errors import UsageError
from moeinf.runtime.policy.eviction import NextUse
from moeinf.runtime.policy.tuned import Gain, TunedNetwork
from moeinf.traces.folder import read_facts
from moeinf.traces.trace import Trace, cut, joined, load_trace, without_first
from moeinf.types import Float32Array, MoeShape

PERCENTS: Final = (10, 20, 35, 50)  # of the experts, resident
LATER_SHARE: Final = 0.25  # of the tokens, for the measurement
MOST_MEASURED: Final = 7000  # tokens
LEAST_REQUESTS: Final = 4
LEAST_TOKENS: Final = 400


def require_torch() -> None:
    """Raises UsageError, before anything is read, where there is no torch to train with."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError("`moeinf tune` trains with torch, which is not installed: pip install torch")


@dataclass(frozen=True, slots=True)
class Course:
    """How long to train, and where all that is drawn begins."""

    rounds: int = 3
    seed: int = 0


def requests_of(folders: Sequence[Path], name: str, model_id: str, shape: MoeShape) -> Trace:
    """The recorded requests of a model, in the order of the folders.

    Raises UsageError for what is no trace, or of another model, and for too few requests.
    """
    parts = []
    for folder in folders:
        facts, trace = read_facts(folder), load_trace(folder)
        if trace.shape != shape or (facts is not None and facts.model_id not in ("", model_id)):
            raise UsageError(f"{folder} is a trace of another model than {name}; record one with `moeinf run --trace`")
        parts.append(trace)
    trace = joined(parts)
    if (trace.experts < 0).any():
        raise UsageError(f"{name} has an encoder, and the network learns decoders alone: its default stays")
    if trace.num_requests < LEAST_REQUESTS or trace.num_tokens < LEAST_TOKENS:
        raise UsageError(
            f"{trace.num_requests} requests of {trace.num_tokens} tokens are too few to learn from: record at least "
            f"{LEAST_REQUESTS} of {LEAST_TOKENS} with `moeinf run {name} --trace`"
        )
    return trace


def divided(trace: Trace) -> tuple[Trace, Trace]:
    """The earlier requests, and the later ones: the fewest that have LATER_SHARE of the tokens."""
    border = int(np.searchsorted(trace.offsets, trace.num_tokens * (1 - LATER_SHARE), side="right")) - 1
    border = min(max(border, 1), trace.num_requests - 1)
    return cut(trace, int(trace.offsets[border])), without_first(trace, border)


def tune(trace: Trace, model_id: str, course: Course, progress: Callable[[str, int, int], None]) -> TunedNetwork:
    """progress(what is done, so far, in all)."""
    from moeinf.bench.tuning.training import train  # loads torch

    earlier, later = divided(trace)
    lessons = lessons_of(earlier, lambda done, whole: progress("reading routing", done, whole))
    weights = train(lessons, course.rounds, course.seed, lambda done, whole: progress("training", done, whole))
    progress("measuring", 0, 1)
    return measured(weights, later, model_id)


def measured(weights: dict[str, Float32Array], later: Trace, model_id: str) -> TunedNetwork:
    """The network with what it gains on these requests, over next-use; both know nothing of them at first."""
    nothing = Gain((), (), (), 0, 0)
    network = TunedNetwork(model_id, later.shape, weights, nothing)
    part = cut(later, MOST_MEASURED)
    slots = [slots_of(part.shape, percent) for percent in PERCENTS]
    rates = []
    for policy in (NextUse(part.shape), NextUse(part.shape, tuned=network)):
        results = replay(part, [SimulatedTier(each, policy) for each in slots])
        phases = [result.get("decode") or next(iter(result.values())) for result in results]
        rates.append(tuple(round(100 * phase.stats.hit_rate, 3) for phase in phases))
    gain = Gain(PERCENTS, rates[0], rates[1], part.num_requests, part.num_tokens)
    return TunedNetwork(model_id, part.shape, weights, gain)
