"""Runs a plan: every policy with every predictor on every trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moeinf.bench.simulation.baselines import BASELINES, baseline
from moeinf.bench.simulation.belady import BOUND, Belady
from moeinf.bench.simulation.quality import Quality, QualityMeter
from moeinf.bench.simulation.replay import SimulatedTier, drive, replay
from moeinf.bench.simulation.run import PhaseResult, SimulatedRun, one_size
from moeinf.bench.simulation.simulation_plan import Plan
from moeinf.errors import UsageError
from moeinf.runtime.cache.slot_sizes import SlotSizes, slot_sizes
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import make_policy
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.policy_protocol import EvictionPolicy, Listener
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.policy.predictors import NO_PREDICTOR, make_predictor
from moeinf.runtime.policy.segments import ScoredLists
from moeinf.runtime.prefetch import MEASURED, prefetch_text
from moeinf.traces.guesses import Guesses, guesses_of
from moeinf.traces.rows_of_steps import ALONE, Arranged, StepForm, arranged
from moeinf.traces.trace import Trace, load_trace
from moeinf.types import MoeShape, Phase


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy with one predictor in one cache."""

    policy: str
    predictor: str
    admission: str
    share: float  # percent of the experts
    slots: int
    phases: dict[Phase, PhaseResult]
    form: StepForm = ALONE  # of the steps

    @property
    def main(self) -> PhaseResult:
        """Decode, or what there is instead of it."""
        return self.phases.get("decode") or next(iter(self.phases.values()))

    @property
    def has_prefill(self) -> bool:
        return "prefill" in self.phases and "decode" in self.phases

    @property
    def hit_rate(self) -> float:
        """Of decode."""
        return self.main.stats.hit_rate

    @property
    def reads(self) -> float:
        """Experts read a token, of decode."""
        stats = self.main.stats
        return (stats.demand_reads + stats.prefetches) / max(1, self.main.tokens)


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of one trace."""

    steps: tuple[Arranged, ...]  # of each form
    cells: list[Cell]
    quality: dict[str, list[Quality]]  # of each predictor, by distance; of single tokens

    @property
    def trace(self) -> Trace:
        return self.steps[0].trace

    @property
    def tokens(self) -> int:
        """That were computed, in steps of each form about as many."""
        return self.steps[0].trace.num_tokens - self.steps[0].rejected

    def of(self, policy: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.policy == policy]


def simulate(folders: Sequence[Path], plan: Plan, progress: Callable[[str], None]) -> list[Simulated]:
    """progress(what is simulated now). Raises UsageError for what is no trace, or lacks the guesses that are asked for.

    Every trace is read before the first is replayed.
    """
    traces = read_traces(folders, plan)
    steps = [steps_of(trace, plan) for trace in traces]
    predictors = [predictors_of(trace, guesses_of(trace, plan.drawn, plan.seed), plan) for trace in traces]
    return [
        _simulated(of_trace, replace(plan, predictors=names), progress)
        for of_trace, names in zip(steps, predictors, strict=True)
    ]


def steps_of(trace: Trace, plan: Plan) -> list[Arranged]:
    """The trace in steps of each form of the plan. Raises UsageError where it has too few requests for one."""
    if not plan.of_rows:
        return [Arranged(trace)]
    return [arranged(trace, form, plan.prefill_tokens, plan.max_tokens, plan.seed) for form in plan.forms]


def read_traces(folders: Sequence[Path], plan: Plan) -> list[Trace]:
    """With the sizes of experts that the plan gives, or else their own. Raises UsageError as load_trace does."""
    first_tokens = None if plan.of_rows else plan.max_tokens  # of steps with rows, they are those of several requests
    traces = [load_trace(folder, first_tokens) for folder in folders]
    for trace in traces:
        if plan.expert_bytes and len(plan.expert_bytes) not in (1, trace.shape.num_layers):
            raise UsageError(
                f"--expert-bytes gives {len(plan.expert_bytes)} sizes, and {trace.name} has "
                f"{trace.shape.num_layers} layers: give one for each, or one for all"
            )
    if not plan.expert_bytes:
        return traces
    return [replace(trace, expert_bytes=plan.expert_bytes * (len(plan.expert_bytes) > 1)) for trace in traces]


def slots_of(shape: MoeShape, share: float) -> int:
    """How many experts a cache of so many percent holds; those of one token at least."""
    return max(shape.top_k, round(shape.total_experts * share / 100))


def sized_slots(trace: Trace, share: float) -> tuple[int, SlotSizes]:
    """The same, with the sizes of the slots: where those of experts are known, as an engine has them in that memory."""
    shape = trace.shape
    if not trace.expert_bytes:
        return slots_of(shape, share), one_size(shape)
    sizes = slot_sizes(trace.expert_bytes, shape)
    room = int(sizes.num_bytes(shape.total_experts) * share / 100)
    sizes = sizes.worth_in(room)
    return max(shape.top_k, sizes.slots_in(room)), sizes


def predictors_of(trace: Trace, guesses: Guesses | None, plan: Plan) -> tuple[str, ...]:
    """Without those that want guesses where there are none, if all were asked for. Raises UsageError if they were."""
    if guesses is not None:
        return plan.predictors
    asking = [name for name in plan.predictors if LookAheadPredictor.name in name.split("+")]
    if asking and not plan.all_predictors:
        raise UsageError(
            f"{trace.name} has no guesses of look-ahead: give --lookahead-recall to draw some, or leave {asking[0]} out"
        )
    return tuple(name for name in plan.predictors if name not in asking)


def _simulated(steps: Sequence[Arranged], plan: Plan, progress: Callable[[str], None]) -> Simulated:
    predictors = plan.predictors if plan.timed else (NO_PREDICTOR,)
    cells: list[Cell] = []
    quality = {}
    for each in steps:
        trace, form = each.trace, "" if each.form == ALONE else f", {each.form.text}"
        guesses = guesses_of(trace, plan.drawn, plan.seed)
        for policy in plan.policies:
            for predictor in predictors if policy not in BASELINES else (NO_PREDICTOR,):
                for admission in plan.admissions if predictor != NO_PREDICTOR else (MEASURED,):
                    progress(f"{trace.name}{form}: {policy}, prefetch {prefetch_text(predictor, admission)}")
                    cells += _cells(each, guesses, plan, policy, predictor, admission)
        for name in plan.predictors if each.form == ALONE else ():
            if name != NO_PREDICTOR:
                progress(f"{trace.name}: how well {name} predicts")
                quality[name] = _quality(trace, guesses, plan, name)
    return Simulated(tuple(steps), cells, quality)


def _cells(
    steps: Arranged, guesses: Guesses | None, plan: Plan, policy: str, predictor: str, admission: str
) -> Iterator[Cell]:
    trace, shape = steps.trace, steps.trace.shape
    slots, sizes = zip(*(sized_slots(trace, share) for share in plan.shares), strict=True)
    collection = ActivationCollection(shape)
    recorder = RequestRecorder(shape, collection.add)
    if policy in BASELINES:
        runs = [baseline(policy, shape, plan.timing)]
        results = drive(trace, runs, [], None, plan.prefill_tokens) * len(slots)
    else:
        results = replay(
            trace,
            [*map(SimulatedTier, slots, policies_of(policy, trace, slots, collection, plan.prefill_tokens), sizes)],
            recorder,
            make_predictor(predictor, shape, collection),
            plan.timing,
            plan.prefill_tokens,
            guesses,
            admission,
        )
    for share, size, phases in zip(plan.shares, slots, results, strict=True):
        cell = Cell(policy, predictor, admission, share, size, phases, steps.form)
        cell.main.tokens -= steps.rejected  # they are none
        yield cell


def policies_of(
    name: str, trace: Trace, slots: Sequence[int], collection: ActivationCollection, prefill_tokens: int = 0
) -> Sequence[EvictionPolicy]:
    """One for each cache; the same for all where it does not depend on their size. prefill_tokens: see passes_of."""
    if name == BOUND:
        return [Belady(trace, prefill_tokens)] * len(slots)
    first, *others = slots
    policy = make_policy(name, trace.shape, collection, first)
    if isinstance(policy, ScoredLists):
        return [policy, *(make_policy(name, trace.shape, collection, size) for size in others)]
    return [policy] * len(slots)


def _quality(trace: Trace, guesses: Guesses | None, plan: Plan, name: str) -> list[Quality]:
    """Beside a cache of the first size under the first policy that has one."""
    shape = trace.shape
    collection = ActivationCollection(shape)
    policy_name = next((name for name in plan.policies if name not in BASELINES), "next-use")
    slots, sizes = sized_slots(trace, plan.shares[0])
    (policy,) = policies_of(policy_name, trace, [slots], collection)
    run = SimulatedRun(shape, slots, policy, sizes=sizes)
    predictor = make_predictor(name, shape, collection)
    assert predictor is not None
    meter = QualityMeter(shape, run, predictor)
    observers: list[Listener] = [RequestRecorder(shape, collection.add), policy, predictor]
    drive(trace, [run], observers, guesses, plan.prefill_tokens, meter)
    return meter.result()
