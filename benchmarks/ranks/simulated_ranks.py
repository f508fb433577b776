"""Times a star of several machines by recorded routing, in simulated time: docs/lab/scale-out.md has what came of it.

python benchmarks/ranks/simulated_ranks.py TRACE... --ranks 2,4,8 --link GB/s --compute US --expert-bytes SIZE [--json]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from moeinf.bench.simulation.replay import SharedPrediction, drive
from moeinf.bench.simulation.run import PhaseResult, Results, SimulatedRun, Timing
from moeinf.bench.simulation.simulate import policies_of, predictors_of, read_traces, sized_slots
from moeinf.bench.simulation.simulated_link import Clock
from moeinf.bench.simulation.simulation_plan import Plan, plan_of
from moeinf.config.simulate_options import SimulateOptions
from moeinf.distributed.ownership import Capacity, owners, shares
from moeinf.errors import UsageError
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.policy_protocol import EvictionPolicy, Listener, Predictor
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.policy.predictors import make_predictor
from moeinf.terminal.screen import table
from moeinf.traces.guesses import Guesses, guesses_of
from moeinf.traces.trace import Trace
from moeinf.types import IntArray, MoeShape

Gather = Literal["rows", "sums", "tree"]
GATHERS: Final[tuple[Gather, ...]] = ("rows", "sums", "tree")

WIRE_S: Final = 20e-6  # one way: two network cards and a switch
SEND_S: Final = 25e-6  # of rank 0's own time, for each message that it posts: measured over gloo, docs/lab/scale-out.md
WAKE_S: Final = 40e-6  # from a message in a machine's memory to the thread that waits for it, likewise
_USED: Final = 0.94  # of a link's rate, behind the headers of Ethernet, IP and TCP
_FAN_OUT: Final = 8  # children of a rank in a tree


@dataclass(frozen=True, slots=True)
class Network:
    """A network by the rate of its links, full duplex, one a machine."""

    name: str
    bytes_per_s: float

    def seconds(self, num_bytes: float) -> float:
        return num_bytes / self.bytes_per_s


def networks_of(text: str) -> tuple[Network, ...]:
    """1GbE,10GbE: names with commas between. Raises UsageError."""
    return tuple(_network(name.strip()) for name in dict.fromkeys(text.split(",")))


def _network(name: str) -> Network:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)GbE", name)
    if found is None or not 0 < float(found[1]) <= 1e4:
        raise UsageError(f"--network {name!r} is no network; write for example 1GbE,10GbE,100GbE")
    return Network(name, float(found[1]) * 1e9 / 8 * _USED)


def asked_at(network: Network, now_s: float, num_bytes: Sequence[float], gather: Gather) -> list[float]:
    """When each of some ranks has the request that rank 0 posts from now on, one after the other.

    num_bytes: of each request. In a tree all go to the first ranks, which pass them on.
    """
    if gather == "tree":
        depth = _depth(len(num_bytes))
        hop = SEND_S + network.seconds(max(num_bytes, default=0.0)) + WIRE_S + WAKE_S
        return [now_s + depth * (hop + (_FAN_OUT - 1) * SEND_S)] * len(num_bytes)
    arrivals, posted_s, free_s = [], now_s, now_s
    for each in num_bytes:
        posted_s += SEND_S
        free_s = max(free_s, posted_s) + network.seconds(each)
        arrivals.append(free_s + WIRE_S + WAKE_S)
    return arrivals


def answered_at(
    network: Network,
    ready_s: Sequence[float],
    num_rows: Sequence[int],
    num_tokens: int,
    row_bytes: float,
    gather: Gather,
) -> float:
    """When rank 0 has what ranks have computed; ready_s: when each is done with so many rows.

    rows: a row for each token and expert, all through the one link of rank 0. sums: each rank sends one a token. tree:
    ranks add what their children send, so that rank 0 is sent no more than that of each of its own children.
    """
    if gather == "tree":
        hop = SEND_S + network.seconds(num_tokens * row_bytes * min(_FAN_OUT, len(ready_s))) + WIRE_S + WAKE_S
        return max(ready_s) + _depth(len(ready_s)) * hop
    free_s = 0.0
    for ready, rows in sorted(zip(ready_s, num_rows, strict=True)):
        sent = rows if gather == "rows" else min(rows, num_tokens)
        free_s = max(free_s, ready + SEND_S + WIRE_S) + network.seconds(sent * row_bytes)
    return free_s + WAKE_S


def _depth(num_ranks: int) -> int:
    depth, reached = 1, _FAN_OUT
    while reached < num_ranks:
        depth, reached = depth + 1, reached + _FAN_OUT ** (depth + 1)
    return depth


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


@dataclass(frozen=True, slots=True)
class RanksPlan:
    """Several machines of one kind, in place of one."""

    counts: tuple[int, ...]
    networks: tuple[Network, ...]
    gathers: tuple[Gather, ...]
    copies: float  # percent of the experts that two ranks have
    row_bytes: int


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


def simulate_ranks(folders: Sequence[Path], plan: Plan, ranks: RanksPlan) -> list[RanksCell]:
    """Raises UsageError as simulate does."""
    traces = read_traces(folders, plan)
    cells: list[RanksCell] = []
    for trace in traces:
        guesses = guesses_of(trace, plan.drawn, plan.seed)
        for policy in plan.policies:
            for predictor in predictors_of(trace, guesses, plan):
                for share in plan.shares:
                    cells += _cells(trace, guesses, plan, ranks, policy, predictor, share)
    return cells


def _cells(
    trace: Trace, guesses: Guesses | None, plan: Plan, ranks: RanksPlan, policy: str, predictor: str, share: float
) -> Iterator[RanksCell]:
    shape, (slots, sizes) = trace.shape, sized_slots(trace, share)
    collection = ActivationCollection(shape)
    (decides,) = policies_of(policy, trace, [slots], collection)
    made = make_predictor(predictor, shape, collection)
    predicts = None if made is None else SharedPrediction(made)
    stars = list(_stars(ranks))
    runs = []
    for star in stars:
        owner = owners(shape.num_keys, shares(shape.num_keys, [Capacity(slots, 1.0)] * star.num_ranks))
        owner = owner.reshape(shape.num_layers, -1)
        uses = uses_of(trace.experts, shape, range(trace.num_tokens // 2))
        second = seconds_of(owner, uses, ranks.copies, star.num_ranks)
        runs.append(SimulatedRanks(shape, slots, star, owner, second, decides, predicts, plan.timing, sizes))
    observers: list[Listener] = [RequestRecorder(shape, collection.add), decides]
    observers += [] if predicts is None else [predicts]
    results = drive(trace, runs, observers, guesses, plan.prefill_tokens)
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


def ranks_json(cells: Sequence[RanksCell], plan: Plan, ranks: RanksPlan) -> str:
    """One object a cell. Times are seconds."""
    timing = {"read_s": plan.timing.read_s, "layer_s": plan.timing.layer_s, "seed": plan.seed}
    star = {"copies": ranks.copies, "row_bytes": ranks.row_bytes}
    return json.dumps([asdict(cell) | timing | star for cell in cells], indent=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--ranks", required=True, help="of this kind, each with a cache of --cache: 2,4,8")
    parser.add_argument("--network", default="10GbE", help="what joins them: 1GbE,10GbE")
    parser.add_argument("--gather", default="rows", help="what ranks send back: rows, one an expert, sums, or a tree")
    parser.add_argument("--copies", type=float, default=0.0, help="percent of the experts, the hottest, on two ranks")
    parser.add_argument("--row-bytes", type=int, default=8192, help="of a token's hidden state between ranks")
    parser.add_argument("--json", action="store_true")
    simulate = {"cache": str, "policy": str, "predictor": str, "link": float, "compute": float, "expert_bytes": str}
    for name, kind in (simulate | {"prefill": int, "max_tokens": int, "lookahead_recall": float}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="as `moeinf simulate` has it")
    options = vars(parser.parse_args())
    own = ("traces", "ranks", "network", "gather", "copies", "row_bytes", "json")
    asked = {name: options.pop(name) for name in own}
    plan = plan_of(SimulateOptions(**{name: value for name, value in options.items() if value is not None}))
    gathers = tuple(each for each in GATHERS if each in asked["gather"].split(","))
    counts = tuple(int(count) for count in asked["ranks"].split(","))
    star = RanksPlan(counts, networks_of(asked["network"]), gathers, asked["copies"], asked["row_bytes"])
    cells = simulate_ranks(asked["traces"], plan, star)
    print(ranks_json(cells, plan, star) if asked["json"] else "\n".join(ranks_tables(cells, plan)))


if __name__ == "__main__":
    main()
