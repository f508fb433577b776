"""The context that nobody asked for is long enough for agents where it costs little, as the first prompts of these are
long.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import plan_device_memory
from moeinf.engine.memory.footprint import sequence_bytes, shared_tokens
from moeinf.engine.memory.plan import plan_memory
from moeinf.engine.memory.side_by_side import that_fit
from tests.support.footprints import FOOTPRINT, INFO, LARGE, on

SERVED = RuntimeConfig(many_conversations=True)  # 100 kB a token; 128 experts of 4 MiB, 300 MiB of dense weights


@pytest.mark.parametrize(
    ("available_mib", "context"),
    [
        (1200, 4096),  # as without a server
        (2200, 4096),  # experts would leave 1 GB, half of which is less than 8,192 tokens of four sequences
        (3400, 8192),
        (6000, 16384),
        (12_000, 32768),
        (100_000, 32768),  # the rest comes when a prompt needs it
    ],
)
def test_it_costs_no_expert_where_there_is_room(available_mib: int, context: int) -> None:
    plan = plan_memory(FOOTPRINT, SERVED, on(available_mib))
    assert plan.context == context
    alone = plan_memory(FOOTPRINT, RuntimeConfig.of(context=4096), on(available_mib))
    assert plan.num_slots == alone.num_slots or available_mib < 1400, "prefixes take memory, too"


def test_where_experts_are_short_it_takes_a_32nd() -> None:
    few, many = (replace(LARGE, info=replace(INFO, kv_bytes_per_token=size)) for size in (100, 100_000))
    assert plan_memory(few, SERVED, on(20_000)).context == 32768
    assert plan_memory(many, SERVED, on(20_000)).context == 4096


def test_models_and_requests_set_its_bounds() -> None:
    short = replace(FOOTPRINT, info=replace(INFO, context_length=10_000))
    assert plan_memory(short, SERVED, on(100_000)).context == 10_000
    assert plan_memory(FOOTPRINT, replace(SERVED.changed(context=700)), on(100_000)).context == 700
    assert plan_memory(FOOTPRINT, RuntimeConfig(), on(100_000)).context == 4096, "for a single conversation"


def test_it_does_not_depend_on_how_many_answers_are_made_side_by_side() -> None:
    for available_mib in (3400, 6000, 12_000):
        asked = replace(SERVED, parallel=4)
        assert that_fit(FOOTPRINT, asked, on(available_mib)) == 4
        plan = plan_memory(FOOTPRINT, asked, on(available_mib))
        assert plan.context == plan_memory(FOOTPRINT, SERVED, on(available_mib)).context
        assert plan.kv_bytes == sequence_bytes(INFO, shared_tokens(plan.context, 4)) or plan.context <= 8192


@pytest.mark.parametrize(("vram_mib", "context"), [(2500, 4096), (6000, 16384), (40_000, 32768)])
def test_a_gpu_gives_of_its_own_memory(vram_mib: int, context: int) -> None:
    free = vram_mib << 20
    assert plan_device_memory(FOOTPRINT, SERVED, on(32_000), free, free).context == context
    assert plan_device_memory(FOOTPRINT, RuntimeConfig(), on(32_000), free, free).context == 4096
    several = replace(SERVED.changed(device="cuda:0,cuda:1"))
    assert plan_device_memory(FOOTPRINT, several, on(32_000), free, free).context == 4096, "each would have its own"
