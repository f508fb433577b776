"""Runs the part of a plan that is about several machines, and shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from moeinf.bench.simulation.network import Gather, Network
from moeinf.bench.simulation.plan import Plan, RanksPlan
from moeinf.bench.simulation.ranks import SimulatedRanks, Star, seconds_of, uses_of
from moeinf.bench.simulation.replay import SharedPrediction, drive
from moeinf.bench.simulation.run import PhaseResult
from moeinf.bench.simulation.simulate import policies_of, predictors_of, read_traces, sized_slots
from moeinf.distributed.ownership import Capacity, owners, shares
from moeinf.runtime.experts import Observer
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.predictors import look_ahead_of, make_predictor
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.terminal.screen import table
from moeinf.traces.guesses import Guesses, guesses_of
from moeinf.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class RanksCell:
    """One star under one policy and predictor."""

    trace: str
    policy: str
    predictor: str
    share: float  # percent of the experts that one rank holds
    slots: int
    ranks: int
    network: str
    gather: Gather
    hit_rate: float
    imbalance: float
    token_s: float
    prompt_token_s: float | None


def simulate_ranks(folders: Sequence[Path], plan: Plan, progress: Callable[[str], None]) -> list[RanksCell]:
    """progress(what is simulated now). Raises UsageError as simulate does."""
    traces = read_traces(folders, plan)
    cells: list[RanksCell] = []
    for trace in traces:
        guesses = guesses_of(trace, plan.drawn, plan.seed)
        for policy in plan.policies:
            for predictor in predictors_of(trace, guesses, plan):
                for share in plan.shares:
                    progress(f"{trace.name}: {policy}, prefetch {predictor}, {share:g}%")
                    cells += _cells(trace, guesses, plan, policy, predictor, share)
    return cells


def _cells(
    trace: Trace, guesses: Guesses | None, plan: Plan, policy: str, predictor: str, share: float
) -> Iterator[RanksCell]:
    assert plan.ranks is not None
    shape, (slots, sizes) = trace.shape, sized_slots(trace, share)
    collection = ActivationCollection(shape)
    (decides,) = policies_of(policy, trace, [slots], collection)
    made = make_predictor(predictor, shape, collection)
    predicts = None if made is None else SharedPrediction(made)
    stars = list(_stars(plan.ranks))
    runs = []
    for star in stars:
        owner = owners(shape.num_keys, shares(shape.num_keys, [Capacity(slots, 1.0)] * star.num_ranks))
        owner = owner.reshape(shape.num_layers, -1)
        uses = uses_of(trace.experts, shape, range(trace.num_tokens // 2))
        second = seconds_of(owner, uses, plan.ranks.copies, star.num_ranks)
        runs.append(SimulatedRanks(shape, slots, star, owner, second, decides, predicts, plan.timing, sizes))
    observers: list[Observer] = [RequestRecorder(shape, collection.add), decides]
    observers += [] if predicts is None else [predicts]
    look_ahead = None if made is None else look_ahead_of(made)
    results = drive(trace, runs, observers, look_ahead, guesses, plan.prefill_tokens)
    for star, run, phases in zip(stars, runs, results, strict=True):
        main: PhaseResult = phases.get("decode") or next(iter(phases.values()))
        prompt = phases["prefill"].token_s if "prefill" in phases and "decode" in phases else None
        yield RanksCell(
            trace.name,
            policy,
            predictor,
            share,
            slots,
            star.num_ranks,
            star.network.name if star.num_ranks > 1 else "",
            star.gather,
            main.stats.hit_rate,
            run.balance.imbalance,
            main.token_s,
            prompt,
        )


def _stars(ranks: RanksPlan) -> Iterator[Star]:
    """One machine first, to compare with; then each number with each network and each form of gathering."""
    yield Star(1, Network("", 1.0), "rows", ranks.row_bytes)
    for count in ranks.counts:
        for network in ranks.networks if count > 1 else ():
            for gather in ranks.gathers:
                yield Star(count, network, gather, ranks.row_bytes)


def ranks_tables(cells: Sequence[RanksCell], plan: Plan) -> list[str]:
    """Lines: a table for each trace, policy, predictor and cache."""
    read, layer = plan.timing.read_s * 1e3, plan.timing.layer_s * 1e3
    lines = [
        f"Simulated. An expert is read in {read:.3g} ms; a layer takes {layer:.3g} ms beside reads and messages.",
        "hit: activations whose expert was resident on its rank; uneven: how many times an even share of a layer's",
        "experts the busiest rank has; x: times as fast as one rank.",
    ]
    groups: dict[tuple[str, str, str, float], list[RanksCell]] = {}
    for cell in cells:
        groups.setdefault((cell.trace, cell.policy, cell.predictor, cell.share), []).append(cell)
    for (trace, policy, predictor, share), group in groups.items():
        header = ("ranks", "network", "gather", "hit", "uneven", "ms/token", "x", "ms/prompt token", "x")
        lines += ["", f"{trace}: {policy}, prefetch {predictor}, each rank holds {share:g}% ({group[0].slots} experts)"]
        lines += ["", *table([header, *(_row(cell, group[0]) for cell in group)], gap=2)]
    return lines


def _row(cell: RanksCell, alone: RanksCell) -> tuple[str, ...]:
    prompt = ("", "")
    if cell.prompt_token_s and alone.prompt_token_s:
        prompt = f"{cell.prompt_token_s * 1e3:.4g}", f"{alone.prompt_token_s / cell.prompt_token_s:.2f}"
    return (
        str(cell.ranks),
        cell.network,
        cell.gather if cell.ranks > 1 else "",
        f"{100 * cell.hit_rate:.1f}%",
        f"{cell.imbalance:.2f}",
        f"{cell.token_s * 1e3:.4g}",
        f"{alone.token_s / cell.token_s:.2f}",
        *prompt,
    )


def ranks_json(cells: Sequence[RanksCell], plan: Plan) -> str:
    """One object a cell. Times are seconds."""
    timing = {"read_s": plan.timing.read_s, "layer_s": plan.timing.layer_s, "seed": plan.seed}
    assert plan.ranks is not None
    ranks = {"copies": plan.ranks.copies, "row_bytes": plan.ranks.row_bytes}
    return json.dumps([asdict(cell) | timing | ranks for cell in cells], indent=2)
