"""The experiments of docs/lab/paper.md: each takes recorded routing, and returns rows of plain numbers.

All replay the first tokens of a trace, in file order, through the classes that run live; the cache is kept across
requests, and what policies and predictors learn starts empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from moeinf.bench.simulation.quality import QualityMeter
from moeinf.bench.simulation.replay import drive
from moeinf.bench.simulation.run import UNTIMED, SimulatedRun, Timing
from moeinf.bench.simulation.simulate import Simulated, policies_of, simulate, slots_of
from moeinf.bench.simulation.simulation_plan import plan_of
from moeinf.config.simulate_options import SimulateOptions
from moeinf.runtime.policy.eamc import CAPACITY, NUM_MATCHES, ActivationCollection
from moeinf.runtime.policy.eviction import ActivationAware, make_policy
from moeinf.runtime.policy.policy_protocol import Listener, Predictor
from moeinf.runtime.policy.policy_trace import ActivationMatrix, RequestRecorder
from moeinf.runtime.policy.predictors import EamcPredictor, make_predictor
from moeinf.runtime.policy.priority import EPS
from moeinf.runtime.prefetch import NO_ADMISSION, prefetch_text
from moeinf.traces.clusters import cluster_requests
from moeinf.traces.statistics import request_matrices
from moeinf.traces.trace import Trace, cut, load_trace
from moeinf.types import FloatArray, IntArray

Row = dict[str, Any]

SHARES: Final = (5, 10, 20, 35, 50)  # percent of the experts that are resident
SHARES_OF_STEPS: Final = (10, 20, 50)
TOKENS_A_STEP: Final = (1, 2, 4)
TOKENS_OF_STEPS: Final = 400  # replayed
POINT: Final = 0.01
LOOK_AHEAD: Final = 0.85  # recall and precision of the drawn guesses, as published of models of these sizes
CONFIDENCE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A trace, and the sizes of the model that it was recorded from."""

    folder: Path
    expert_bytes: int  # at the 4 bits in which the model is run
    tokens: int | None = 7000  # replayed where whole behaviour is measured
    few_tokens: int | None = 1200  # where much is compared
    timed_tokens: int | None = 800  # where a clock runs

    def timing(self, link: float, compute_us: float) -> Timing:
        """link: GB/s. compute_us: of a layer, beside reads."""
        return Timing(self.expert_bytes / (link * 1e9), compute_us * 1e-6)

    def trace(self) -> Trace:
        return load_trace(self.folder, self.few_tokens)

    def beginnings(self, tokens: int = 24) -> Trace:
        """The first tokens of every request: many requests in little time."""
        whole = load_trace(self.folder)
        starts, lengths = whole.offsets[:-1], np.minimum(np.diff(whole.offsets), tokens)
        rows = np.concatenate([np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)])
        return Trace(whole.name, whole.shape, whole.experts[rows], np.array([0, *np.cumsum(lengths)]))


def hit_rates(subject: Subject) -> list[Row]:
    """Hit rate against cache size: every policy, and the bound."""
    options = SimulateOptions(cache=",".join(map(str, SHARES)), policy="all", max_tokens=subject.tokens)
    (simulated,) = simulate([subject.folder], plan_of(options), print)
    return [_cell_row(cell) for cell in simulated.cells]


def times(
    subject: Subject, link: float, compute_us: float, policies: str, predictors: str, admission: str | None = None
) -> list[Row]:
    """Time a token on one link against cache size, with look-ahead drawn as good as published."""
    simulated = _timed(subject, link, compute_us, policies, predictors, admission)
    return [_cell_row(cell) | {"ms_a_token": cell.main.token_s * 1e3} for cell in simulated.cells]


def several_tokens(subject: Subject, link: float, compute_us: float) -> list[Row]:
    """Experts read a token where a step computes several, all of which the answer keeps: the union of a step is read
    once. The time of a token on one link, with and without look-ahead drawn as good as published."""
    rows = []
    for policies, predictors in (("lru,next-use,belady", "none"), ("next-use", "look-ahead")):
        options = SimulateOptions(
            cache=",".join(map(str, SHARES_OF_STEPS)),
            policy=policies,
            predictor=predictors,
            draft=",".join(str(tokens - 1) for tokens in TOKENS_A_STEP),
            acceptance=1.0,
            lookahead_recall=LOOK_AHEAD,
            lookahead_confidence=CONFIDENCE,
            link=link,
            compute=compute_us,
            expert_bytes=str(subject.expert_bytes),
            max_tokens=TOKENS_OF_STEPS,
        )
        (simulated,) = simulate([subject.folder], plan_of(options), print)
        rows += [
            _cell_row(cell)
            | {"tokens": 1 + cell.form.draft, "reads": cell.reads, "ms_a_token": cell.main.token_s * 1e3}
            for cell in simulated.cells
        ]
    return rows


def predictions(subject: Subject) -> list[Row]:
    """Recall, precision and used share of every predictor, by distance in layers, beside next-use at 20 %."""
    options = SimulateOptions(
        cache="20",
        policy="next-use",
        predictor="all",
        lookahead_recall=LOOK_AHEAD,
        lookahead_confidence=CONFIDENCE,
        max_tokens=subject.few_tokens,
    )
    (simulated,) = simulate([subject.folder], plan_of(options), print)
    return [
        {
            "predictor": name,
            "distance": each.distance,
            "recall": each.recall,
            "precision": _number(each.precision),
            "used": _number(each.used),
        }
        for name, found in simulated.quality.items()
        for each in found
    ]


def predictions_of_many(subject: Subject) -> list[Row]:
    """The same of the next layer alone, over the beginnings of all requests: then past requests are many."""
    trace = subject.beginnings(10)
    shape, rows = trace.shape, []
    for name in ("previous-token", "frequency", "cross-layer", "eamc"):
        collection = ActivationCollection(shape)
        slots = slots_of(shape, 20)
        policy = make_policy("next-use", shape, collection, slots)
        run, predictor = SimulatedRun(shape, slots, policy), make_predictor(name, shape, collection)
        assert predictor is not None
        meter = QualityMeter(shape, run, predictor)
        drive(trace, [run], [RequestRecorder(shape, collection.add), policy, predictor], None, 0, meter)
        found = meter.result()[0]
        rows.append({"predictor": name, "recall": found.recall, "precision": _number(found.precision)})
    return rows


def capacities(subject: Subject) -> list[Row]:
    """How many past requests are worth keeping: the paper's policy, and the recall of its prediction."""
    trace = subject.beginnings(10)
    return [_paper_row(trace, {"capacity": n}, capacity=n) for n in (1, 3, 10, 30, 120, 300, 1000)]


def sensitivity(subject: Subject) -> list[Row]:
    """The three choices that the paper leaves open, each varied alone."""
    trace = subject.trace()
    rows = [_paper_row(trace, {"matches": n}, num_matches=n) for n in (1, 3, 5, 20)]
    rows += [_paper_row(trace, {"eps": eps}, eps=eps) for eps in (1e-4, 1e-3, 1e-2, 1e-1)]
    return rows + [_paper_row(trace, {"layer_decay": wanted}, layer_decay=wanted) for wanted in (True, False)]


def _paper_row(
    trace: Trace,
    varied: Row,
    capacity: int = CAPACITY,
    num_matches: int = NUM_MATCHES,
    eps: float = EPS,
    layer_decay: bool = True,
) -> Row:
    """Hit rates of the policy, and how much of the next layer the prediction recalls."""
    shape = trace.shape
    collection = ActivationCollection(shape, capacity)
    policy = ActivationAware(shape, collection, num_matches, eps, layer_decay)
    predictor = EamcPredictor(collection, num_matches)
    shares = (10, 20)
    runs = [SimulatedRun(shape, slots_of(shape, share), policy) for share in shares]
    meter = QualityMeter(shape, runs[0], predictor)
    recorder = RequestRecorder(shape, collection.add)
    drive(trace, runs, [recorder, policy, predictor], None, 0, meter)
    found = meter.result()
    return {
        **varied,
        "hits": {share: run.tier.stats.hit_rate for share, run in zip(shares, runs, strict=True)},
        "recall": found[0].recall if found else 0.0,
    }


def recovery(subject: Subject, timing: Timing) -> list[Row]:
    """After a change of workload: hits of each request, beside those of a run that had the new workload all the time.

    The workloads are the two clusters of the requests' activation matrices that lie farthest apart (k-means, k = 2):
    a harder change than another data set. Share of the experts that are resident: 20 %. The paper's policy runs with
    its prefetch, too, for which the machine takes time.
    """
    trace = subject.beginnings()
    first, second = _two_workloads(trace)
    num_before, num_after = (min(len(part) // divisor, 60) for part, divisor in ((first, 1), (second, 2)))
    evaluated = second[-num_after:]
    rows = []
    kinds = (*((name, UNTIMED) for name in ("lru", "lfu", "paper", "next-use")), ("paper", timing))
    for name, clock in kinds:
        changed, steady = (
            _request_hits(trace, [*before[:num_before], *evaluated], name, clock)[-num_after:]
            for before in (first, second[:-num_after])
        )
        behind = np.array(steady) - np.array(changed)
        rows.append(
            {
                "policy": name,
                "prefetch": clock != UNTIMED,
                "requests": num_after,
                "steady": float(np.mean(steady)),
                "behind": behind.tolist(),
                "recovered_after": _recovered(behind),
            }
        )
    return rows


def _recovered(behind: FloatArray) -> int:
    """The first request from which on the mean of five requests is less than a point behind."""
    means = np.convolve(behind, np.ones(5) / 5, mode="valid")
    late = np.flatnonzero(means >= POINT)
    return int(late[-1]) + 1 if len(late) else 0


def _two_workloads(trace: Trace) -> tuple[list[int], list[int]]:
    """The requests of two clusters, those of the smaller one last."""
    members = cluster_requests(trace, 2)[0].members
    parts = sorted((np.flatnonzero(members == cluster).tolist() for cluster in (0, 1)), key=len)
    return parts[1], parts[0]


def _request_hits(trace: Trace, requests: Sequence[int], policy_name: str, timing: Timing) -> list[float]:
    """The hit rate of each of these requests, in this order, at 20 % resident; with the paper's prefetch if timed."""
    shape = trace.shape
    collection = ActivationCollection(shape)
    slots = slots_of(shape, 20)
    (policy,) = policies_of(policy_name, trace, [slots], collection)
    observers: list[Listener] = [RequestRecorder(shape, collection.add), policy]
    predictor = None if timing == UNTIMED else EamcPredictor(collection)
    if predictor is not None:
        observers.append(predictor)
    run = SimulatedRun(shape, slots, policy, predictor, timing, admission=NO_ADMISSION)
    return [_hits_of(trace, request, run, observers) for request in requests]


def _hits_of(trace: Trace, request: int, run: SimulatedRun, observers: Sequence[Listener]) -> float:
    before = run.tier.stats.snapshot()
    drive(_request(trace, request), [run], observers, None, 0)
    return run.tier.stats.since(before).hit_rate


def _request(trace: Trace, request: int) -> Trace:
    first, last = trace.offsets[request : request + 2].tolist()
    return Trace(trace.name, trace.shape, trace.experts[first:last], np.array([0, last - first]))


def warm_start(subject: Subject) -> list[Row]:
    """What the collection of earlier requests is worth to the next run, in which the cache and the rest start empty.

    loaded: the cache is filled with the experts that the earlier requests used most, before the first request.
    """
    trace = subject.beginnings()
    half = trace.num_requests // 2
    past = cut(trace, int(trace.offsets[half]))
    collections = {
        "empty": ActivationCollection(trace.shape),
        "online": _collected(past),
        "k-means": cluster_requests(past, min(CAPACITY, half))[1],
    }
    requests = range(half, min(half + 30, trace.num_requests))
    rows = []
    for share in (10, 20, 35, 50):
        for name in ("paper", "next-use"):
            for known, earlier in collections.items():
                for loaded in (False, True) if known == "online" else (False,):
                    collection = ActivationCollection.loads(earlier.dumps(), trace.shape)
                    slots = slots_of(trace.shape, share)
                    policy = make_policy(name, trace.shape, collection, slots)
                    run = SimulatedRun(trace.shape, slots, policy)
                    if loaded:
                        run.load(_most_used(earlier, slots))
                    observers: list[Listener] = [RequestRecorder(trace.shape, collection.add), policy]
                    hits = [_hits_of(trace, request, run, observers) for request in requests]
                    rows.append(
                        {"policy": name, "share": share, "known": known, "loaded": loaded}
                        | {f"first_{n}": float(np.mean(hits[:n])) for n in (1, 5, 30)}
                    )
    return rows


def _collected(trace: Trace) -> ActivationCollection:
    """What the requests of a trace leave behind, as they end one after the other."""
    collection = ActivationCollection(trace.shape)
    for counts in request_matrices(trace):
        matrix = ActivationMatrix(trace.shape)
        matrix.counts[:] = counts
        collection.add(matrix)
    return collection


def _most_used(collection: ActivationCollection, count: int) -> IntArray:
    """The keys of the experts with the largest share of their layers' activations, over all requests."""
    shares = collection.rows[: len(collection)].mean(axis=0).ravel()
    keys: IntArray = np.sort(np.argsort(-shares, kind="stable")[:count])
    return keys


def prefill_guess(subject: Subject) -> list[Row]:
    """Which experts a prompt touches in the next layer, as a pass of many tokens would read them ahead.

    The set is that of runtime/prefetch.py: 1 - (1 - P)^n > 0.3. everything: the guess that every expert is touched.
    """
    trace = subject.trace()
    rows = []
    for name in ("eamc", "frequency", "cross-layer", "everything"):
        collection = ActivationCollection(trace.shape)
        recorder = RequestRecorder(trace.shape, collection.add)
        predictor = None if name == "everything" else make_predictor(name, trace.shape, collection)
        named = right = touched = 0
        for request in range(trace.num_requests):
            experts = _request(trace, request).experts
            observers: list[Listener] = [recorder] if predictor is None else [recorder, predictor]
            for observer in observers:
                observer.begin("prefill")
            for layer in range(trace.shape.num_layers):
                for observer in observers:
                    observer.observe(layer, experts[:, layer])
                if layer + 1 == trace.shape.num_layers or len(experts) < 8:
                    continue
                guess = _read_ahead(predictor, layer, len(experts), trace.shape.num_experts)
                true = np.bincount(experts[:, layer + 1].ravel(), minlength=trace.shape.num_experts) > 0
                named, right, touched = named + guess.sum(), right + (guess & true).sum(), touched + true.sum()
        rows.append(
            {"predictor": name, "recall": float(right / touched), "precision": float(right / named) if named else None}
        )
    return rows


def _read_ahead(predictor: Predictor | None, layer: int, tokens: int, num_experts: int) -> Any:
    likelihood = None if predictor is None else predictor.predict(layer)
    if predictor is None:
        return np.ones(num_experts, bool)
    if likelihood is None:
        return np.zeros(num_experts, bool)
    return 1 - (1 - np.minimum(likelihood[0], 1.0)) ** tokens > 0.3


def _timed(
    subject: Subject, link: float, compute_us: float, policies: str, predictors: str, admission: str | None
) -> Simulated:
    options = SimulateOptions(
        cache="10,20,35,50",
        policy=policies,
        predictor=predictors,
        admission=admission,
        link=link,
        compute=compute_us,
        expert_bytes=str(subject.expert_bytes),
        lookahead_recall=LOOK_AHEAD,
        lookahead_confidence=CONFIDENCE,
        max_tokens=subject.timed_tokens,
    )
    (simulated,) = simulate([subject.folder], plan_of(options), print)
    return simulated


def _cell_row(cell: Any) -> Row:
    stats = cell.main.stats
    ended = stats.prefetches_used + stats.prefetches_wasted
    return {
        "policy": cell.policy,
        "prefetch": prefetch_text(cell.predictor, cell.admission),
        "share": cell.share,
        "hits": cell.hit_rate,
        "stall_share": stats.stall_s / cell.main.seconds if cell.main.seconds else None,
        "used": stats.prefetches_used / ended if ended else None,
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value
