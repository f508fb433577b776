"""Puts a forecast together: the plan that a run would make, the hits to be expected, and the speed that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.plan import MemoryPlan, plan_memory
from moeinf.engine.memory.plan_notes import shortenings
from moeinf.engine.speed.rates import Kind, Rates
from moeinf.engine.speed.speed import PROMPT_TOKENS, Step, decode_step, prefill
from moeinf.engine.speed.weight_bytes import main_kinds
from moeinf.engine.stored.hit_record import HitCount
from moeinf.engine.stored.outline import Outline
from moeinf.forecast.hits import ExpectedHits, expected_hits
from moeinf.hardware import Machine
from moeinf.types import MoeShape

KnownRates = Callable[[Sequence[Kind]], Rates]  # with the reading of these weights, where it can be told


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a run on the CPU."""

    outline: Outline
    plan: MemoryPlan
    rates: Rates
    hits: ExpectedHits
    decode: Step  # of one token, behind that prompt
    prefill: Step  # of a prompt of PROMPT_TOKENS, or what the context has room for
    notes: tuple[str, ...]  # what the plan and the rates gave up for want of memory

    @property
    def moe(self) -> MoeShape:
        return self.outline.manifest.moe

    @property
    def resident_share(self) -> float:
        return self.plan.held_experts / self.moe.total_experts


def forecast(
    outline: Outline, config: RuntimeConfig, machine: Machine, known_rates: KnownRates, record: Mapping[int, HitCount]
) -> Forecast:
    """known_rates: asked once it is known that the model can run, since measuring them takes a while.
    record: of earlier runs of the model, {} where there are none.

    Raises OutOfMemoryError and UsageError as the run would (engine/memory/plan.py).
    """
    footprint, manifest = outline.footprint, outline.manifest
    plan = plan_memory(footprint, config, machine)
    stride = footprint.layout.stride_bytes
    kinds = main_kinds(outline)
    rates = known_rates(kinds)
    hits = expected_hits(manifest.moe, manifest.info.architecture, plan.held_experts, record, stride)
    return Forecast(
        outline,
        plan,
        rates,
        hits,
        decode_step(outline, plan, rates, hits.read_share),
        prefill(outline, plan, rates, min(PROMPT_TOKENS, plan.context)),
        (*shortenings(plan, footprint, config), *_want_of_reading(rates, kinds)),
    )


def _want_of_reading(rates: Rates, kinds: Sequence[Kind]) -> Iterator[str]:
    unknown = [f"{kind.format} of {kind.width}" for kind in kinds if rates.reading_of(kind) is None]
    if unknown:
        yield f"too little memory is free to measure how fast {', '.join(unknown)} is read: the rate of others is taken"
