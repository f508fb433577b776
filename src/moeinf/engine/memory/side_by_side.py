"""How many answers are made side by side, and what their sequences take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import FURTHER_SHARE, Footprint, sequence_bytes
from moeinf.engine.memory.plan import MemoryPlan, plan_memory, wanted_context
from moeinf.errors import OutOfMemoryError
from moeinf.hardware import Machine
from moeinf.types import ModelInfo

MOST: Final = 4  # unasked,
MOST_IN_BULK: Final = 32  # and where nobody waits for a single answer
SHARE: Final = 8  # of the memory at hand, what further sequences take unasked at most: an eighth,
STREAMED_SHARE: Final = 32  # or a 32nd where experts are short of it, of which they would leave fewer in memory
BULK_SHARE: Final = 4  # or a quarter: experts are then read once for all of a step
RECURRENT_GUESSES: Final = 3  # most that a step tries where a state of fixed size is kept behind each token
FITS: Final = 0.75  # of the memory at hand: a model of that size or less is there as a whole


def sessions(config: RuntimeConfig, info: ModelInfo, model_bytes: int, machine: Machine, *, on_gpu: bool) -> int:
    """As asked; else as many as memory has room for, where several go through the layers together: on a CPU alone.

    model_bytes: of all its weights. Raises UsageError for a context beyond the model's.
    """
    room = config.memory.ram.of(machine.available_bytes) if config.memory.ram else machine.available_bytes
    each = max(1, sequence_bytes(info, -(-wanted_context(info, config) // FURTHER_SHARE)))
    if config.parallel:
        return config.parallel
    if on_gpu or config.recording.trace:
        return 1
    share = BULK_SHARE if config.in_bulk else SHARE if model_bytes <= FITS * room else STREAMED_SHARE
    further = room // share // each
    return max(1, min(MOST_IN_BULK if config.in_bulk else MOST, 1 + further))


def that_fit(footprint: Footprint, config: RuntimeConfig, machine: Machine) -> int:
    """How many of the answers of the configuration have room side by side, with the context that one has; at least one.

    footprint: of a model with one sequence, on the CPU. Raises UsageError as plan_memory.
    """

    def planned(count: int) -> MemoryPlan | None:
        try:
            return plan_memory(
                with_guesses(with_sessions(footprint, count), config), replace(config, parallel=count), machine
            )
        except OutOfMemoryError:
            return None

    best = planned(1)
    for count in range(config.parallel, 1, -1):
        plan = planned(count)
        if best is not None and plan is not None and plan.context == best.context:
            return count
    return 1


def with_sessions(footprint: Footprint, count: int) -> Footprint:
    """The sizes of a model that keeps the states of so many sequences; how many tokens of these, a plan says."""
    return replace(footprint, info=replace(footprint.info, state_bytes=count * footprint.info.state_bytes))


def with_guesses(footprint: Footprint, config: RuntimeConfig) -> Footprint:
    """The sizes of a model whose steps try guessed tokens: recurrent states, of which `state_bytes` counts one before a
    pass and one behind it, are kept behind each of them."""
    if config.speculation.speculate == "off" or config.recording.trace:
        return footprint
    further = footprint.info.state_bytes // 2 * (1 + min(config.speculation.draft_max, RECURRENT_GUESSES))
    return replace(footprint, info=replace(footprint.info, state_bytes=footprint.info.state_bytes + further))
