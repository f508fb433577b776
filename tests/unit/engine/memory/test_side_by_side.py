"""How many answers are made side by side where nobody says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import shared_tokens
from moeinf.engine.memory.plan import plan_memory
from moeinf.engine.memory.side_by_side import RECURRENT_GUESSES, sessions, that_fit, with_guesses, with_sessions
from moeinf.hardware import Machine
from tests.support.footprints import FOOTPRINT

GB = 10**9
INFO = replace(FOOTPRINT.info, kv_bytes_per_token=100_000, state_bytes=0, context_length=4096)  # .41 GB a sequence


def found(available: int, model_bytes: int, *, parallel: int = 0, on_gpu: bool = False, **options: Any) -> int:
    config = replace(RuntimeConfig.of(**options), parallel=parallel)
    return sessions(config, INFO, model_bytes, Machine(available, "machine", 2), on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("available", "model_bytes", "wanted"),
    [
        (24 * GB, 5 * GB, 4),
        (8 * GB, 5 * GB, 4),
        (8 * GB, 17 * GB, 4),  # a 32nd, of which a further one takes a fifth
        (GB, 5 * GB, 1),  # which would leave fewer experts in memory
        (GB, GB // 2, 3),  # an eighth has room for two further ones
    ],
)
def test_further_sequences_take_a_small_part_of_the_memory(available: int, model_bytes: int, wanted: int) -> None:
    assert found(available, model_bytes) == wanted


def test_what_is_asked_for_counts() -> None:
    assert found(GB, 5 * GB, parallel=7) == 7 and found(24 * GB, GB, parallel=1) == 1
    assert found(24 * GB, GB, ram="1GB") == 1, "of the memory that may be used"
    assert found(24 * GB, GB, context=1024) == found(24 * GB, GB, workers="host:1") == 4


def test_where_several_go_no_better_there_is_one() -> None:
    assert found(24 * GB, GB, trace="folder") == found(24 * GB, GB, on_gpu=True) == 1


def test_of_those_that_are_asked_for_as_many_go_as_have_room() -> None:
    footprint = replace(FOOTPRINT, info=INFO)
    one = plan_memory(footprint, RuntimeConfig.of(prefill_chunk=512), Machine(24 * GB, "machine", 2))

    def fitting(asked: int, available: int, **options: Any) -> int:
        config = replace(RuntimeConfig.of(speculate="off", prefill_chunk=512, **options), parallel=asked)
        return that_fit(footprint, config, Machine(available, "machine", 2))

    needed = one.total_bytes - one.cache_bytes - one.prefix_bytes
    assert fitting(9, 24 * GB) == 9
    assert 3 <= fitting(9, needed + one.kv_bytes // 2) <= 5, "and the context is that of one"
    assert fitting(9, needed + one.kv_bytes // 4) == 1
    assert fitting(9, 100) == 1, "that there is no room even for it the plan says"


def test_every_sequence_has_states_of_its_own() -> None:
    three = with_sessions(replace(FOOTPRINT, info=replace(FOOTPRINT.info, state_bytes=7)), 3)
    assert (three.info.state_bytes, three.info.kv_bytes_per_token) == (21, FOOTPRINT.info.kv_bytes_per_token)


def test_further_sequences_add_a_part_of_the_context_each() -> None:
    assert [shared_tokens(8192, count) for count in (1, 2, 4)] == [8192, 9216, 11264]
    assert shared_tokens(100, 3) == 100 + 2 * 13


def test_what_all_experts_leave_goes_to_sequences() -> None:
    config, tokens = RuntimeConfig.of(context=4096), FOOTPRINT.info.kv_bytes_per_token
    little, much = Machine(GB, "machine", 2), Machine(32 * GB, "machine", 2)
    four = replace(config, parallel=4)
    assert plan_memory(FOOTPRINT, four, little).kv_bytes == shared_tokens(4096, 4) * tokens
    assert plan_memory(FOOTPRINT, four, much).kv_bytes == 4 * 4096 * tokens
    assert plan_memory(FOOTPRINT, config, much).kv_bytes == 4096 * tokens


def test_recurrent_states_are_counted_behind_every_guessed_token() -> None:
    footprint = replace(
        FOOTPRINT, info=replace(FOOTPRINT.info, state_bytes=2000)
    )  # of one before a pass and one behind

    def counted(**options: Any) -> int:
        return with_guesses(footprint, RuntimeConfig.of(**options)).info.state_bytes

    assert counted() == 3000 + RECURRENT_GUESSES * 1000 and counted(draft_max=1) == 4000
    assert counted(speculate="off") == counted(trace="folder") == 2000
