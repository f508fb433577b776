"""What users are told of a memory plan."""

from __future__ import annotations

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.memory.footprint import Footprint
from moeinf.engine.memory.plan import PREFILL_CHUNK, MemoryPlan, wanted_context
from moeinf.text.quantities import size_text


def sequence_text(plan: MemoryPlan, sequences: int = 1) -> str:
    """What sequences take together, and how many tokens each may have."""
    tokens = f"{plan.context} tokens" if sequences == 1 else f"{sequences} sequences of up to {plan.context} tokens"
    return f"{size_text(plan.kv_bytes)} for {tokens}" + (f" ({plan.kept})" if plan.kept else "")


def activations_text(plan: MemoryPlan) -> str:
    """What is computed of a prompt at once takes, and how much more may be where experts lend their memory."""
    text, long = f"{size_text(plan.activation_bytes)} for {plan.prefill_chunk} tokens of a prompt", plan.long_pieces
    return text if long is None else f"{text}, and up to {long.tokens} in {size_text(long.num_bytes)} of experts"


def prefixes_text(plan: MemoryPlan) -> str:
    """To be put behind where a plan's memory goes."""
    return f" · up to {size_text(plan.prefix_bytes)} more for earlier prompts" if plan.prefix_bytes else ""


def shortenings(plan: MemoryPlan, footprint: Footprint, config: RuntimeConfig) -> list[str]:
    """A note for each part of the plan that memory is too short for."""
    context = wanted_context(footprint.info, config)
    chunk = config.memory.prefill_chunk or (plan.prefill_chunk if isinstance(plan, DevicePlan) else PREFILL_CHUNK)
    limit = "--vram" if isinstance(plan, DevicePlan) else "--ram"
    notes = []
    if plan.context < context:
        notes.append(
            f"memory is short: the context has {plan.context} tokens instead of {context}; free memory, raise "
            f"{limit} where it was given, or insist with --num-ctx {context}"
        )
    if (
        plan.prefill_chunk < min(chunk, plan.context) and not footprint.workspace.source
    ):  # a source goes through as a whole
        notes.append(
            f"memory is short: {plan.prefill_chunk} tokens of a prompt run together instead of {chunk}, which "
            "takes longer"
        )
    return notes
