"""Whether a model has room beside those that are open already."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moeinf.config import DEFAULT_CONTEXT, RuntimeConfig
from moeinf.engine.memory.plan import MemoryPlan, plan_memory
from moeinf.engine.memory.side_by_side import sessions, that_fit, with_sessions
from moeinf.engine.stored.draft_beside import draft_of, left_by
from moeinf.engine.stored.outline import Outline, outline_of
from moeinf.errors import MoeinfError, OutOfMemoryError
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel

LEAST_EXPERTS: Final = 0.5  # of those that it would have alone, that a model keeps in memory beside others


def fits_beside(stored: StoredModel, config: RuntimeConfig, left: Machine, alone: Machine) -> bool:
    """Whether what is left holds a model on the CPU as it should be: with half of the experts that it has alone, and
    a context as long; of one that nobody asked for, DEFAULT_CONTEXT is enough; and beside it the whole model that
    drafts for it.

    left, alone: the machine with other models open, and without. Reads small files.
    """
    try:
        outline = outline_of(stored)
        plan, best = (planned(stored, outline, config, machine) for machine in (left, alone))
    except MoeinfError:  # it does not fit, or whoever opens it is told why it cannot be
        return False
    least = best.context if config.memory.context is not None else min(best.context, DEFAULT_CONTEXT)
    return plan.context >= least and plan.held_experts >= LEAST_EXPERTS * best.held_experts


def planned(stored: StoredModel, outline: Outline, config: RuntimeConfig, machine: Machine) -> MemoryPlan:
    """How memory is divided where a model runs on the CPU. Raises OutOfMemoryError, UsageError."""
    count = sessions(config, outline.manifest.info, stored.size_bytes, machine, on_gpu=False)
    if config.speculation.draft:
        machine, config = _beside_draft(stored, replace(config, parallel=count), machine)
    count = that_fit(outline.footprint, replace(config, parallel=count), machine)
    return plan_memory(with_sessions(outline.footprint, count), replace(config, parallel=count), machine)


def _beside_draft(stored: StoredModel, config: RuntimeConfig, machine: Machine) -> tuple[Machine, RuntimeConfig]:
    """What the model that drafts leaves. Raises OutOfMemoryError where not all of it fits."""
    draft, own = draft_of(stored, config)
    outline = outline_of(draft)
    plan = plan_memory(with_sessions(outline.footprint, config.parallel), own, machine)
    if plan.held_experts < outline.manifest.moe.total_experts:
        raise OutOfMemoryError(f"not all of {draft.name} fits in memory")
    return left_by(plan.total_bytes + plan.program_bytes, machine, config)
