"""How memory is divided, and what is said when it does not suffice."""

from __future__ import annotations

import dataclasses

import pytest

from moeinf.config import RuntimeConfig
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.memory import MIN_CONTEXT, OVERHEAD_BYTES, Demands, plan_memory, smallest_bytes
from moeinf.types import ExpertLayout, ModelInfo, MoeShape

MIB = 1 << 20
INFO = ModelInfo("mixtral", 10, 5, 0, 32768, 1024, 8, 1000, 100_000, "bf16")
DEMANDS = Demands(INFO, MoeShape(8, 16, 2), ExpertLayout((), 4 * MIB, 4 * MIB), 300 * MIB)


def on(available_mib: int) -> Machine:
    return Machine(available_mib * MIB, "machine", 2)


def test_all_that_is_left_becomes_slots() -> None:
    plan = plan_memory(DEMANDS, RuntimeConfig(), on(1200))
    assert plan.context == 4096 and plan.kv_bytes == 4096 * 100_000
    spare = 1200 * MIB - plan.total_bytes - OVERHEAD_BYTES
    assert 0 <= spare < 4 * MIB and 2 <= plan.num_slots < 128


def test_a_model_that_fits_gets_a_slot_for_every_expert_and_no_more() -> None:
    assert plan_memory(DEMANDS, RuntimeConfig(), on(100_000)).num_slots == 128


def test_an_automatic_context_shrinks_before_the_model_is_refused() -> None:
    plan = plan_memory(DEMANDS, RuntimeConfig(), on(550))
    assert MIN_CONTEXT <= plan.context < 4096 and plan.num_slots >= 2


def test_a_context_that_was_asked_for_does_not_shrink() -> None:
    with pytest.raises(OutOfMemoryError, match="for 4096 tokens"):
        plan_memory(DEMANDS, RuntimeConfig(context=4096), on(550))


def test_the_refusal_names_need_room_and_remedies() -> None:
    with pytest.raises(OutOfMemoryError, match=r"\d+ MiB needed .*dense 300.* 200 available \(machine\).*--num-ctx"):
        plan_memory(DEMANDS, RuntimeConfig(), on(200))


def test_the_smallest_memory_is_where_the_plan_begins_to_succeed() -> None:
    smallest = smallest_bytes(DEMANDS, 2)
    config = RuntimeConfig(prefill_chunk=MIN_CONTEXT)
    assert plan_memory(DEMANDS, config, Machine(smallest, "machine", 2)).num_slots == 2
    with pytest.raises(OutOfMemoryError):
        plan_memory(DEMANDS, config, Machine(smallest - 1, "machine", 2))


@pytest.mark.parametrize(("asked", "slots"), [("40%", 51), ("8MiB", 2), ("9MiB", 2), ("1000GiB", 128)])
def test_a_given_cache_is_counted_in_whole_experts(asked: str, slots: int) -> None:
    assert plan_memory(DEMANDS, RuntimeConfig(expert_cache=asked), on(100_000)).num_slots == slots


def test_a_cache_below_one_tokens_experts_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(UsageError, match="at least 8 MiB"):
        plan_memory(DEMANDS, RuntimeConfig(expert_cache="7MiB"), on(100_000))


def test_a_cache_beyond_the_memory_is_refused_rather_than_cut() -> None:
    with pytest.raises(OutOfMemoryError, match="experts 400"):
        plan_memory(DEMANDS, RuntimeConfig(expert_cache="400MiB"), on(1000))


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match=r"32769.*32768"):
        plan_memory(DEMANDS, RuntimeConfig(context=32769), on(100_000))


def test_a_short_model_is_not_given_a_longer_context() -> None:
    short = dataclasses.replace(DEMANDS, info=dataclasses.replace(INFO, context_length=100))
    assert plan_memory(short, RuntimeConfig(), on(100_000)).context == 100
