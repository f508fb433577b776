"""How memory is divided, and what is said when it does not suffice."""

from __future__ import annotations

import dataclasses

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import (
    CONTEXT_BYTES,
    DEVICE_OVERHEAD_BYTES,
    HOST_OVERHEAD_BYTES,
    MAX_DEVICE_CHUNK,
    DevicePlan,
    plan_device_memory,
    smallest_device_bytes,
)
from moeinf.engine.memory.footprint import TEXT_BYTES, TEXT_COPIES, Footprint, activation_bytes, device_activation_bytes
from moeinf.engine.memory.plan import (
    MIN_CHUNK,
    MIN_CONTEXT,
    MIN_FREE_BYTES,
    PROCESS_BYTES,
    plan_memory,
    program_bytes,
    reserve_bytes,
    smallest_bytes,
)
from moeinf.engine.memory.plan_notes import shortenings
from moeinf.engine.memory.slots import RING_BYTES
from moeinf.engine.stored.outline import outline_of
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel
from moeinf.types import DTYPE_BYTES, AttentionSizes, LatentSizes, MoeShape, Workspace
from tests.support.footprints import FOOTPRINT, INFO, LARGE, MIB, WIDE, on

PROGRAM = program_bytes(FOOTPRINT)


def test_all_that_is_left_becomes_slots() -> None:
    plan = plan_memory(FOOTPRINT, RuntimeConfig(), on(1200))
    assert plan.context == 4096 and plan.kv_bytes == 4096 * 100_000
    spare = 1200 * MIB - plan.total_bytes - PROGRAM
    assert 0 <= spare - plan.cache_bytes < 8 * MIB and 2 <= plan.num_slots < 128, "half of what experts could have"
    wider = plan_memory(FOOTPRINT, RuntimeConfig(), on(1400))
    assert 256 * MIB <= 1400 * MIB - wider.total_bytes - PROGRAM < 260 * MIB
    tiny = dataclasses.replace(
        FOOTPRINT, moe=MoeShape(80, 256, 2), dense_bytes=0, info=dataclasses.replace(INFO, kv_bytes_per_token=10)
    )
    spare = 1000 * MIB - plan_memory(tiny, RuntimeConfig(), on(1000)).total_bytes - PROGRAM
    assert 200 * MIB <= spare < 204 * MIB, "a fifth is left to other programs"
    large = dataclasses.replace(FOOTPRINT, moe=MoeShape(80, 256, 2))
    for available, left in ((4000, 256), (10_000, 500), (50_000, 1024)):  # a twentieth, between 256 MiB and a GiB
        spare = available * MIB - plan_memory(large, RuntimeConfig(), on(available)).total_bytes - PROGRAM
        assert left * MIB <= spare < (left + 4) * MIB


def test_memory_that_is_asked_for_is_used_to_the_end() -> None:
    plan = plan_memory(FOOTPRINT, RuntimeConfig.of(ram="1200MiB"), on(8000))
    spare = 1200 * MIB - PROCESS_BYTES - plan.total_bytes - PROGRAM
    assert 0 <= spare < 4 * MIB and plan.num_slots < 128


def test_the_cache_keeps_available_what_its_plan_left_to_others() -> None:
    automatic = plan_memory(FOOTPRINT, RuntimeConfig(), on(1400))
    assert reserve_bytes(automatic, on(1400)) == 256 * MIB
    asked = plan_memory(FOOTPRINT, RuntimeConfig.of(expert_cache="400MiB"), on(1200))
    exact = on(1200 - (1200 * MIB - asked.total_bytes - PROGRAM) // MIB)
    assert reserve_bytes(asked, exact) == MIN_FREE_BYTES, "a cache as it was asked for shrinks only in need"
    assert reserve_bytes(asked, on(100_000)) == 1024 * MIB


def test_a_model_that_fits_gets_a_slot_for_every_expert_and_no_more() -> None:
    assert plan_memory(FOOTPRINT, RuntimeConfig(), on(100_000)).num_slots == 128


def test_slots_lend_at_most_half_of_their_memory_to_long_pieces_of_a_prompt() -> None:
    for available in (1000, 1200, 1400):
        plan = plan_memory(FOOTPRINT, RuntimeConfig(), on(available))
        long = plan.long_pieces
        assert long is not None and long.tokens % plan.prefill_chunk == 0 and plan.most_at_once == long.tokens <= 4096
        more = activation_bytes(FOOTPRINT, long.tokens, plan.context, 2) - plan.activation_bytes
        assert long.num_bytes == more <= plan.cache_bytes / 2
        further = activation_bytes(FOOTPRINT, long.tokens + 512, plan.context, 2) - plan.activation_bytes
        assert long.tokens == 4096 or further > plan.cache_bytes / 2 or long.tokens + 512 > plan.context
        assert [long.bytes_of(tokens) for tokens in (1, 512, long.tokens, 9000)] == [0, 0, more, more]
        for tokens in range(513, long.tokens, 100):
            taken = activation_bytes(FOOTPRINT, tokens, plan.context, 2)
            assert plan.activation_bytes + long.bytes_of(tokens) >= taken


def test_pieces_of_a_prompt_take_a_quarter_of_what_is_left_beside_all_experts() -> None:
    all_there = plan_memory(FOOTPRINT, RuntimeConfig.of(prefill_chunk=512), on(100_000))
    left = {}
    for beside in (300, 500, 700, 900, 100_000):
        available = all_there.total_bytes + PROGRAM + beside * MIB
        plan = plan_memory(FOOTPRINT, RuntimeConfig(), Machine(available, "machine", 2))
        more = plan.activation_bytes - all_there.activation_bytes
        assert plan.num_slots == 128 and plan.prefill_chunk % 512 == 0 and more <= (beside - 256) * MIB // 4
        assert plan.activation_bytes == activation_bytes(FOOTPRINT, plan.prefill_chunk, plan.context, 2)
        left[beside] = plan.prefill_chunk
    assert left[300] == 512 < left[700] < 4096 == left[100_000]
    context = plan_memory(FOOTPRINT, RuntimeConfig.of(context=1300), on(100_000))
    assert context.prefill_chunk == 1024, "no longer than the context"


def test_pieces_are_no_longer_than_what_was_asked_for_or_gains_nothing() -> None:
    for config, available in (
        (RuntimeConfig.of(prefill_chunk=512), 1200),
        (RuntimeConfig.of(context=512), 1200),
        (RuntimeConfig(), 100_000),  # every expert is there, and none need lend
        (RuntimeConfig(), 550),  # not even the chunk has room
        (RuntimeConfig.of(expert_cache="40MiB"), 1200),
    ):
        plan = plan_memory(FOOTPRINT, config, on(available))
        assert plan.long_pieces is None and plan.most_at_once == plan.prefill_chunk


def test_an_automatic_context_shrinks_before_the_model_is_refused() -> None:
    plan = plan_memory(FOOTPRINT, RuntimeConfig(), on(550))
    assert MIN_CONTEXT <= plan.context < 4096 and plan.num_slots >= 2


def test_what_memory_is_too_short_for_is_noted_and_what_the_user_wants_is_not() -> None:
    roomy = plan_memory(FOOTPRINT, RuntimeConfig(), on(1200))
    assert shortenings(roomy, FOOTPRINT, RuntimeConfig()) == []
    short = plan_memory(FOOTPRINT, RuntimeConfig(), on(550))
    context, chunk = shortenings(short, FOOTPRINT, RuntimeConfig())
    assert f"the context has {short.context} tokens instead of 4096; " in context and "--num-ctx 4096" in context
    assert f"{short.prefill_chunk} tokens of a prompt run together instead of 512" in chunk
    asked = RuntimeConfig.of(context=512, prefill_chunk=64)
    assert shortenings(plan_memory(FOOTPRINT, asked, on(550)), FOOTPRINT, asked) == []


def test_a_context_that_was_asked_for_does_not_shrink() -> None:
    with pytest.raises(OutOfMemoryError, match="for 4096 tokens"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(context=4096), on(550))


def test_the_refusal_names_need_room_and_remedies() -> None:
    with pytest.raises(OutOfMemoryError, match=r"dense 300.* 264 MiB available \(machine\).*-ctx.*or free memory$"):
        plan_memory(FOOTPRINT, RuntimeConfig(), on(200))


def test_the_refusal_names_no_more_than_the_control_group_has() -> None:
    """The libraries of this process may be at the cost of other groups."""
    group = dataclasses.replace(on(200), limited_by="control group /a", limit_bytes=210 << 20)
    with pytest.raises(OutOfMemoryError, match=r" 210 MiB available \(control group /a\)"):
        plan_memory(FOOTPRINT, RuntimeConfig(), group)


def test_the_smallest_memory_is_where_the_plan_begins_to_succeed() -> None:
    smallest = smallest_bytes(FOOTPRINT, 2)
    config = RuntimeConfig.of(prefill_chunk=MIN_CONTEXT)
    assert plan_memory(FOOTPRINT, config, Machine(smallest, "machine", 2)).num_slots == 2
    with pytest.raises(OutOfMemoryError):
        plan_memory(FOOTPRINT, config, Machine(smallest - 1, "machine", 2))


@pytest.mark.parametrize(("asked", "slots"), [("40%", 51), ("8MiB", 2), ("9MiB", 2), ("1000GiB", 128)])
def test_a_given_cache_is_counted_in_whole_experts(asked: str, slots: int) -> None:
    assert plan_memory(FOOTPRINT, RuntimeConfig.of(expert_cache=asked), on(100_000)).num_slots == slots


def test_a_cache_below_one_tokens_experts_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(UsageError, match=r"holds 1 experts of 4\.0 MiB.*at least 8\.0 MiB"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(expert_cache="7MiB"), on(100_000))


def test_a_cache_beyond_the_memory_is_refused_rather_than_cut() -> None:
    with pytest.raises(OutOfMemoryError, match="experts 400"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(expert_cache="400MiB"), on(1000))


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match=r"32769.*32768"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(context=32769), on(100_000))


def test_a_short_model_is_not_given_a_longer_context() -> None:
    short = dataclasses.replace(FOOTPRINT, info=dataclasses.replace(INFO, context_length=100))
    assert plan_memory(short, RuntimeConfig(), on(100_000)).context == 100


# ---- a budget for the process


def test_a_budget_below_the_machine_binds_and_is_named_where_it_does_not_suffice() -> None:
    plan = plan_memory(FOOTPRINT, RuntimeConfig.of(ram="1200MiB"), on(100_000))
    assert 0 <= 1200 * MIB - PROCESS_BYTES - PROGRAM - plan.total_bytes < 4 * MIB
    with pytest.raises(OutOfMemoryError, match=r"200 MiB available \(--ram 200MiB\); .*or raise --ram$"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(ram="200MiB"), on(100_000))


def test_a_budget_beyond_what_is_available_changes_nothing() -> None:
    machine = on(1200)
    assert plan_memory(FOOTPRINT, RuntimeConfig.of(ram="9GiB"), machine) == plan_memory(
        FOOTPRINT, RuntimeConfig(), machine
    )


def test_a_percentage_is_of_the_whole_machine() -> None:
    machine = dataclasses.replace(on(3000), total_bytes=4000 * MIB)
    assert plan_memory(FOOTPRINT, RuntimeConfig.of(ram="30%"), machine) == plan_memory(
        FOOTPRINT, RuntimeConfig.of(ram="1200MiB"), machine
    )


def test_what_is_for_a_gpu_is_refused_where_none_is_used() -> None:
    with pytest.raises(UsageError, match=r"--vram 8GiB .*this run uses none"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(vram="8GiB"), on(100_000))
    with pytest.raises(UsageError, match=r"--cpu-experts .*this run uses none"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(cpu_experts=True), on(100_000))


# ---- a GPU


def test_a_quantised_cache_takes_what_its_blocks_take() -> None:
    sizes = AttentionSizes(512, 4, 2, 64, 0, False)
    info = dataclasses.replace(INFO, kv_bytes_per_token=65_536)
    footprint = dataclasses.replace(FOOTPRINT, info=info, workspace=Workspace(layers=frozenset([sizes])))
    plan = plan_memory(footprint, RuntimeConfig.of(kv_cache="q8_0", context=4096), on(4000))
    assert plan.kv_bytes == 4096 * (info.kv_bytes_per_token // DTYPE_BYTES[info.dtype]) // 32 * 34
    wide = plan_memory(footprint, RuntimeConfig.of(kv_cache="f32", context=4096), on(4000))
    assert wide.kv_bytes == 4096 * info.kv_bytes_per_token // DTYPE_BYTES[info.dtype] * 4


def test_a_cache_that_cannot_be_kept_so_is_refused() -> None:
    odd = AttentionSizes(512, 4, 2, 80, 0, False)
    latent = LatentSizes(4, 64, 16, 16, 8)
    for sizes, length in ((odd, 80), (latent, 8)):
        footprint = dataclasses.replace(FOOTPRINT, workspace=Workspace(layers=frozenset([sizes])))
        with pytest.raises(UsageError, match=f"--kv-cache q8_0 keeps .* heads of {length}; use bf16"):
            plan_memory(footprint, RuntimeConfig.of(kv_cache="q8_0"), on(4000))
    source = dataclasses.replace(FOOTPRINT, workspace=Workspace(source=4))
    with pytest.raises(UsageError, match="--kv-cache q8_0 is for decoders"):
        plan_memory(source, RuntimeConfig.of(kv_cache="q8_0"), on(4000))
    with pytest.raises(UsageError, match="--kv-cache q8_0 is for the CPU"):
        plan_device_memory(FOOTPRINT, RuntimeConfig.of(kv_cache="q8_0"), on(100_000), 1 << 34, 1 << 34)
    with pytest.raises(UsageError, match="unknown --kv-cache 'q4'; known: auto, f32"):
        RuntimeConfig.of(kv_cache="q4")


CARD = 24_000 * MIB  # bytes


def on_gpu(
    config: RuntimeConfig | None = None, free: int = CARD, host_mib: int = 200_000, footprint: Footprint = WIDE
) -> DevicePlan:
    return plan_device_memory(footprint, config or RuntimeConfig(), on(host_mib), free, CARD)


def test_all_of_the_card_that_is_left_becomes_slots() -> None:
    plan = on_gpu(free=10_000 * MIB)
    assert plan.context == 4096 and plan.kv_bytes == 4096 * 100_000 and plan.dense_bytes == 300 * MIB
    assert 0 <= 10_000 * MIB - DEVICE_OVERHEAD_BYTES - plan.total_bytes < 400 * MIB and 2 <= plan.num_slots < 128


def test_a_budget_below_the_card_plans_as_a_card_of_that_size_would() -> None:
    limited = on_gpu(RuntimeConfig.of(vram="12000MiB"))
    smaller = plan_device_memory(WIDE, RuntimeConfig(), on(200_000), 12_000 * MIB - CONTEXT_BYTES, 12_000 * MIB)
    assert limited == smaller and limited.limit_bytes == 12_000 * MIB
    assert on_gpu(RuntimeConfig.of(vram="50%")) == limited


def test_what_others_use_of_the_card_binds_before_a_budget_does() -> None:
    assert on_gpu(RuntimeConfig.of(vram="12000MiB"), free=6000 * MIB).num_slots == on_gpu(free=6000 * MIB).num_slots


def test_every_expert_may_lie_in_host_memory_and_none_twice() -> None:
    plan = on_gpu()
    assert plan.num_slots < 128 and plan.host_slots == 128 and plan.host_bytes == 128 * 400 * MIB


def test_a_card_that_holds_every_expert_leaves_the_host_a_ring() -> None:
    small = dataclasses.replace(WIDE, layout=dataclasses.replace(WIDE.layout, stride_bytes=4 * MIB))
    plan = on_gpu(footprint=small)
    assert (plan.num_slots, plan.host_bytes) == (128, RING_BYTES)
    assert on_gpu(RuntimeConfig.of(expert_cache="50%"), footprint=small).host_slots == 128


def test_the_host_gets_the_slots_that_its_budget_has_room_for() -> None:
    host = on_gpu(RuntimeConfig.of(ram="10000MiB")).host_bytes
    assert 0 <= 10_000 * MIB - PROCESS_BYTES - HOST_OVERHEAD_BYTES - host < 400 * MIB


@pytest.mark.parametrize(
    ("free_gib", "total_gib", "gib", "pinned_gib"),
    [(14, 16, 11.0, 11.0), (28, 32, 23.2, 23.2), (59, 64, 49.4, 48.0), (4, 8, 1.0, 1.0)],
)
def test_a_machine_keeps_memory_that_is_not_pinned(
    free_gib: int, total_gib: int, gib: float, pinned_gib: float
) -> None:
    machine = Machine(free_gib << 30, "machine", 2, total_gib << 30)
    plan = plan_device_memory(LARGE, RuntimeConfig(), machine, CARD, CARD)
    assert plan.host_bytes >> 20 == pytest.approx(gib * 1024, abs=15)
    assert plan.pinned_bytes >> 20 == pytest.approx(pinned_gib * 1024, abs=15)
    limited = dataclasses.replace(machine, limited_by="control group /a", total_bytes=512 << 30)
    group = plan_device_memory(LARGE, RuntimeConfig(), limited, CARD, CARD)
    assert group.pinned_bytes <= free_gib * 0.75 * 2**30 and group.host_bytes >= plan.host_bytes


def test_a_budget_for_the_host_is_taken_at_its_word_but_for_what_may_be_pinned() -> None:
    machine = Machine(60 << 30, "machine", 2, 64 << 30)
    plan = plan_device_memory(LARGE, RuntimeConfig.of(ram="60GiB"), machine, CARD, CARD)
    assert plan.host_slots == LARGE.moe.total_experts and 47.9 < plan.pinned_bytes / 2**30 < 48


def test_a_card_with_a_display_keeps_a_part_of_its_memory_free() -> None:
    for total, left in ((8 << 30, 1 << 30), (24 << 30, (24 << 30) * 8 // 100)):
        alone, shared = (
            plan_device_memory(LARGE, RuntimeConfig(), on(200_000), total - (1 << 29), total, display)
            for display in (False, True)
        )
        assert abs(alone.total_bytes - shared.total_bytes - left) < 1 << 28
        assert shared.limit_bytes == total - left
        told = RuntimeConfig.of(vram=str(total))
        assert plan_device_memory(LARGE, told, on(200_000), total - (1 << 29), total, True) == alone


def test_a_host_without_room_for_one_tokens_experts_is_refused_by_its_own_name() -> None:
    with pytest.raises(OutOfMemoryError, match=r"beside the GPU: 2624 MiB .*experts 1600.* 2436 .*--ram 2500MiB"):
        on_gpu(RuntimeConfig.of(ram="2500MiB"))


def test_a_host_smaller_than_the_dense_weights_suffices() -> None:
    heavy = dataclasses.replace(WIDE, dense_bytes=8000 * MIB)
    assert (
        on_gpu(RuntimeConfig.of(ram="4000MiB"), footprint=heavy).host_bytes
        == on_gpu(RuntimeConfig.of(ram="4000MiB")).host_bytes
        > 0
    )


def test_a_host_keeps_room_for_a_tower_and_a_card_for_a_whole_picture() -> None:
    seeing = dataclasses.replace(WIDE, tower_bytes=1200 * MIB, whole_tokens=1000)
    for config in (RuntimeConfig.of(ram="10000MiB"), RuntimeConfig()):
        without, within = (on_gpu(config, host_mib=30_000, footprint=each).host_bytes for each in (WIDE, seeing))
        assert 800 * MIB <= without - within <= 1600 * MIB
    assert device_activation_bytes(seeing, 64, 4096) == device_activation_bytes(WIDE, 1000, 4096)


@pytest.mark.parametrize("free_mib", [3000, 6000, 12_000, 24_000])
def test_an_automatic_chunk_takes_an_eighth_of_what_is_left_at_most(free_mib: int) -> None:
    plan = on_gpu(RuntimeConfig.of(context=32768), free=free_mib * MIB + 3_300_000_000, footprint=WIDE)
    room = free_mib * MIB + 3_300_000_000 - DEVICE_OVERHEAD_BYTES - plan.dense_bytes - plan.kv_bytes
    assert plan.prefill_chunk & (plan.prefill_chunk - 1) == 0 and MIN_CHUNK <= plan.prefill_chunk <= MAX_DEVICE_CHUNK
    assert plan.activation_bytes == device_activation_bytes(WIDE, plan.prefill_chunk, 32768)
    assert plan.activation_bytes <= room / 8 or plan.prefill_chunk == MIN_CHUNK
    assert (
        plan.prefill_chunk == MAX_DEVICE_CHUNK
        or device_activation_bytes(WIDE, 2 * plan.prefill_chunk, 32768) > room / 8
    )


def test_a_chunk_that_is_given_is_kept_and_none_is_longer_than_the_context() -> None:
    assert on_gpu(RuntimeConfig.of(prefill_chunk=300)).prefill_chunk == 300
    assert on_gpu(RuntimeConfig.of(context=1000)).prefill_chunk == 1000


def test_the_chunk_shrinks_before_the_context_and_that_before_a_gpu_is_refused() -> None:
    kv_bytes = 4096 * INFO.kv_bytes_per_token
    free = DEVICE_OVERHEAD_BYTES + (300 + 800) * MIB + kv_bytes
    plan = on_gpu(RuntimeConfig.of(prefill_chunk=4096), free=free + 100 * MIB)
    assert MIN_CHUNK <= plan.prefill_chunk < 4096 and (plan.context, plan.num_slots) == (4096, 2)
    plan = on_gpu(free=free - 100 * MIB)
    assert MIN_CONTEXT <= plan.context < 4096 and plan.num_slots == 2
    assert [note.split(";")[0] for note in shortenings(plan, WIDE, RuntimeConfig())] == [
        f"memory is short: the context has {plan.context} tokens instead of 4096"
    ]
    with pytest.raises(OutOfMemoryError, match=r"on the GPU: \d+ MiB needed .*4096 tokens.*1903 free on the card; "):
        on_gpu(RuntimeConfig.of(context=4096), free=free - 100 * MIB)


def test_a_refusal_under_a_budget_names_it() -> None:
    with pytest.raises(OutOfMemoryError, match=r"1488 left of --vram 2000MiB.*--num-ctx.*--expert-cache.*--vram"):
        on_gpu(RuntimeConfig.of(vram="2000MiB", context=4096))


def test_a_given_cache_is_the_cards() -> None:
    assert on_gpu(RuntimeConfig.of(expert_cache="10%")).num_slots == 12
    with pytest.raises(UsageError, match=r"at least 800\.0 MiB"):
        on_gpu(RuntimeConfig.of(expert_cache="799MiB"))
    with pytest.raises(OutOfMemoryError, match="experts 51200"):
        on_gpu(RuntimeConfig.of(expert_cache="100GiB"), free=20_000 * MIB)


def test_the_smallest_card_is_where_its_plan_begins_to_succeed() -> None:
    vram, ram = smallest_device_bytes(WIDE)
    machine = Machine(ram, "machine", 2)
    config = RuntimeConfig.of(vram=str(vram))
    assert plan_device_memory(WIDE, config, machine, CARD, CARD).num_slots == 2
    with pytest.raises(OutOfMemoryError, match="on the GPU"):
        plan_device_memory(WIDE, RuntimeConfig.of(vram=str(vram - 1)), machine, CARD, CARD)
    with pytest.raises(OutOfMemoryError, match="beside the GPU"):
        plan_device_memory(WIDE, config, dataclasses.replace(machine, available_bytes=ram - 1), CARD, CARD)


def test_a_source_is_planned_for_as_a_whole_whatever_the_chunk() -> None:
    footprint = dataclasses.replace(WIDE, workspace=dataclasses.replace(WIDE.workspace, source=16))
    few, many = (RuntimeConfig.of(prefill_chunk=chunk, context=1024) for chunk in (64, 1024))
    taken = on_gpu(few, footprint=footprint).activation_bytes
    assert taken == on_gpu(many, footprint=footprint).activation_bytes
    assert taken > device_activation_bytes(WIDE, 1024, 1024) + 16 * 1024 * 1024 * 4, "scores of 16 heads"
    on_cpu = [plan_memory(footprint, config, on(4000)).activation_bytes for config in (few, many)]
    assert on_cpu[0] == on_cpu[1]


def test_prefixes_are_counted_where_they_are_asked_for() -> None:
    without = plan_memory(FOOTPRINT, RuntimeConfig(), on(4000))
    assert without.prefix_bytes == 0
    plan = plan_memory(FOOTPRINT, RuntimeConfig.of(prefix_memory="100MiB", expert_cache="400MiB"), on(4000))
    assert plan.prefix_bytes == 100 * MIB and plan.num_slots == 100
    shared = plan_memory(FOOTPRINT, RuntimeConfig.of(prefix_memory="10%", ram="1200MiB"), on(4000))
    assert shared.total_bytes <= 1200 * MIB - PROCESS_BYTES - PROGRAM
    assert 0 < shared.prefix_bytes <= 114 * MIB < 1200 * MIB


def test_prefixes_are_kept_unasked_for_many_conversations_and_recurrent_models() -> None:
    many = dataclasses.replace(RuntimeConfig(), many_conversations=True)
    assert plan_memory(FOOTPRINT, many, on(4000)).prefix_bytes == 200 * MIB
    recurrent = dataclasses.replace(FOOTPRINT, info=dataclasses.replace(INFO, state_bytes=MIB))
    assert plan_memory(recurrent, RuntimeConfig(), on(4000)).prefix_bytes == 200 * MIB
    assert plan_memory(FOOTPRINT, RuntimeConfig.of(prefix_disk="1GB"), on(4000)).prefix_bytes == 200 * MIB
    tight = plan_memory(FOOTPRINT, many, on(smallest_bytes(FOOTPRINT, 2) // MIB + 40))
    assert tight.prefix_bytes < 10 * MIB, "where there is hardly room for experts, there is none for prefixes"


def test_more_prefixes_than_memory_is_named() -> None:
    with pytest.raises(OutOfMemoryError, match="prefixes 8192"):
        plan_memory(FOOTPRINT, RuntimeConfig.of(prefix_memory="8GiB"), on(4000))


def test_a_larger_tokenizer_leaves_fewer_slots(demo: StoredModel) -> None:
    footprint = outline_of(demo).footprint
    (size,) = (file.num_bytes for file in demo.manifest.files if file.file == "tokenizer.json")
    assert footprint.text_bytes == TEXT_BYTES + TEXT_COPIES * size
    larger = dataclasses.replace(FOOTPRINT, text_bytes=FOOTPRINT.text_bytes + 80 * MIB)
    plans = [plan_memory(each, RuntimeConfig.of(ram="1200MiB"), on(8000)) for each in (FOOTPRINT, larger)]
    assert plans[0].num_slots - plans[1].num_slots == 80 * MIB // plans[0].slot_bytes
