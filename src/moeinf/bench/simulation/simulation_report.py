"""What was simulated, as tables and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from moeinf.bench.simulation.simulate import Cell, Simulated
from moeinf.bench.simulation.simulation_plan import Plan
from moeinf.runtime.policy.predictors import NO_PREDICTOR
from moeinf.runtime.prefetch import AT_LEAST, prefetch_text
from moeinf.terminal.screen import table
from moeinf.traces.rows_of_steps import ALONE
from moeinf.types import JsonObject

INDEPENDENT: Final = "independent"


def tables(simulated: list[Simulated], plan: Plan) -> list[str]:
    """Lines: of each trace a title, the hit rates or the times, and how good predictions were."""
    lines: list[str] = []
    for each in simulated:
        shape = each.trace.shape
        untimed = _reads if plan.of_rows else _hit_rates
        lines += [
            f"{each.trace.name}: {each.tokens} tokens, {shape.text.replace('experts', f'experts{_sizes_text(each)}')}",
            "",
            *(_times(each, plan) if plan.timed else untimed(each, plan)),
            "",
        ]
        if each.quality:
            lines += [*_quality(each, plan), ""]
    return lines[:-1]


def _sizes_text(each: Simulated) -> str:
    sizes = len(set(each.trace.expert_bytes))
    return f" of {sizes} sizes" if sizes > 1 else ""


def _hit_rates(each: Simulated, plan: Plan) -> Iterator[str]:
    sizes = {cell.share: cell.slots for cell in each.cells}
    header = ["policy", *(f"{share:g}% ({slots} experts)" for share, slots in sizes.items())]
    rows = [[policy, *(_percent(cell.hit_rate) for cell in each.of(policy))] for policy in plan.policies]
    yield "Share of activations whose expert was resident, without prefetch."
    yield ""
    yield from table([header, *rows])


def _reads(each: Simulated, plan: Plan) -> Iterator[str]:
    sizes = {cell.share: cell.slots for cell in each.cells}
    header = ["policy", "rows of a step", *(f"{share:g}% ({slots} experts)" for share, slots in sizes.items())]
    rows = [
        [policy, form.text, *(_reads_text(cell) for cell in each.of(policy) if cell.form == form)]
        for policy in plan.policies
        for form in plan.forms
    ]
    chance = [
        [INDEPENDENT, steps.form.text, *(f"{steps.independent_union * (1 - share / 100):.1f}" for share in sizes)]
        for steps in each.steps
    ]
    yield "Experts read a token, and hits, without prefetch; a step reads what any of its rows needs once."
    yield f"{INDEPENDENT}: were experts drawn evenly for each row, so that no policy knows what comes."
    yield ""
    yield from table([header, *rows, *chance])
    yield ""
    yield "Experts that a token needs, each once a step and layer: measured, and by independent choices."
    yield ""
    yield from table(
        [
            ["rows of a step", "measured", INDEPENDENT],
            *([steps.form.text, f"{steps.union:.1f}", f"{steps.independent_union:.1f}"] for steps in each.steps),
        ]
    )


def _reads_text(cell: Cell) -> str:
    return f"{cell.reads:.1f} ({_percent(cell.hit_rate)})"


def _times(each: Simulated, plan: Plan) -> Iterator[str]:
    read, layer = _ms(plan.timing.read_s), _ms(plan.timing.layer_s)
    yield f"An expert is read in {read} ms; a layer takes {layer} ms beside reads."
    yield "hit, late: of activations; stall: ms a token; read: experts a token, those ahead of demand of all; used: of"
    yield "those ahead."
    prompts = ["ms/prompt token"] if any(cell.has_prefill for cell in each.cells) else []
    for form in plan.forms:
        for share in plan.shares:
            cells = [cell for cell in each.cells if cell.share == share and cell.form == form]
            header = [f"{share:g}% ({cells[0].slots})", "prefetch", "hit", "late", "stall", "read", "used", "ms/token"]
            yield ""
            if plan.of_rows:
                yield f"rows of a step: {form.text}"
            yield from table([[*header, *prompts], *(_time_row(cell) for cell in cells)], gap=2)


def _time_row(cell: Cell) -> list[str]:
    result, stats = cell.main, cell.main.stats
    tokens, activations = max(1, result.tokens), max(1, stats.activations)
    ended = stats.prefetches_used + stats.prefetches_wasted
    return [
        cell.policy,
        prefetch_text(cell.predictor, cell.admission),
        _percent(stats.hit_rate),
        _percent(stats.late_hits / activations),
        f"{stats.stall_s / tokens * 1e3:.3g}",
        f"{stats.prefetches / tokens:.3g} of {(stats.prefetches + stats.demand_reads) / tokens:.3g}",
        _percent(stats.prefetches_used / ended) if ended else "-",
        f"{result.token_s * 1e3:.4g}",
        *([f"{cell.phases['prefill'].token_s * 1e3:.4g}"] if cell.has_prefill else []),
    ]


def _quality(each: Simulated, plan: Plan) -> Iterator[str]:
    yield f"Predictions, so many layers ahead; named: with a prefetch priority above {AT_LEAST:g}; used: of what is"
    yield f"named and not resident at {plan.shares[0]:g} %."
    yield ""
    header = ("predictor", "ahead", "recall", "named", "precision", "to read", "used")
    yield from table(
        [
            header,
            *(
                (
                    name,
                    str(quality.distance),
                    _percent(quality.recall),
                    f"{quality.named:.2f}",
                    _percent(quality.precision),
                    f"{quality.read:.2f}",
                    _percent(quality.used),
                )
                for name, qualities in each.quality.items()
                for quality in qualities
            ),
        ]
    )


def as_json(simulated: list[Simulated], plan: Plan) -> str:
    """One object a trace: every figure of every cell and phase, and of the predictions. Times are seconds."""
    return json.dumps([_object(each, plan) for each in simulated], indent=2)


def _object(each: Simulated, plan: Plan) -> JsonObject:
    shape = each.trace.shape
    return {
        "trace": each.trace.name,
        "tokens": each.tokens,
        "layers": shape.num_layers,
        "experts": shape.num_experts,
        "top_k": shape.top_k,
        "read_s": plan.timing.read_s,
        "layer_s": plan.timing.layer_s,
        "seed": plan.seed,
        "drawn_guesses": None if plan.drawn is None else asdict(plan.drawn),
        "cells": [
            {
                "policy": cell.policy,
                "predictor": cell.predictor,
                "admission": cell.admission,
                "cache_percent": cell.share,
                "slots": cell.slots,
                "parallel": cell.form.parallel,
                "draft": cell.form.draft,
                "acceptance": cell.form.acceptance,
                "reads_a_token": cell.reads,
                "phases": {
                    phase: {
                        "tokens": result.tokens,
                        "seconds": result.seconds,
                        "hit_rate": result.stats.hit_rate,
                        **{name: value for name, value in asdict(result.stats).items() if not name.endswith("_bytes")},
                    }
                    for phase, result in cell.phases.items()
                },
            }
            for cell in each.cells
        ],
        "predictions": {
            name: [_without_nan(asdict(quality)) for quality in qualities] for name, qualities in each.quality.items()
        },
    }


def _without_nan(figures: JsonObject) -> JsonObject:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}%"


def label_of(cell: Cell) -> str:
    """What a line of a plot is called."""
    prefetch = prefetch_text(cell.predictor, cell.admission)
    parts = [cell.policy, *([] if cell.predictor == NO_PREDICTOR else [prefetch])]
    return ", ".join(parts if cell.form == ALONE else [*parts, cell.form.text])
