"""A token takes what its weights, its layers and its reads take, on the CPU as on a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.plan import plan_device_memory
from moeinf.engine.speed.rates import CardRates, Kind, Reading
from moeinf.engine.speed.speed import Step, device_decode_step
from moeinf.engine.speed.weight_bytes import (
    dense_weights,
    expert_weights,
    head_weights,
    main_kinds,
    token_weights,
    token_weights_s,
)
from moeinf.engine.stored.outline import outline_of
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.types import format_bytes
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.footprints import LARGE, on
from tests.support.rates import PLAIN


def test_weights_are_counted_once_each(demo: StoredModel) -> None:
    outline = outline_of(demo)
    info, moe = outline.manifest.info, outline.manifest.moe
    experts = sum(expert_weights(outline, 0).values())
    assert experts == 3 * 128 * 64
    assert sum(head_weights(outline).values()) == info.vocab_size * info.hidden_size  # tied to the embedding
    counted = sum((dense_weights(outline) + head_weights(outline)).values()) + moe.top_k * moe.num_layers * experts
    assert 0.99 * info.active_params < counted <= info.active_params


def test_an_embedding_that_is_looked_up_makes_no_logits(tmp_path: Path) -> None:
    stored = pull(str(write_checkpoint(tmp_path / "checkpoint", random_tensors())), home=tmp_path / "home")
    info = stored.manifest.info
    assert sum(head_weights(outline_of(stored)).values()) == info.vocab_size * info.hidden_size


def test_decoding_takes_what_its_bytes_take_at_the_rate_of_their_format_and_width(demo: StoredModel) -> None:
    outline = outline_of(demo)
    experts, dense = token_weights(outline)
    kinds = main_kinds(outline)
    assert kinds == [Kind("bf16", 128), Kind("bf16", 64)]
    by_products = token_weights_s(outline, PLAIN)
    assert by_products == pytest.approx(sum((experts + dense).values()) * 1e-9)  # of PLAIN
    known = PLAIN.with_reading(dict.fromkeys(experts + dense, Reading(4e9, 2e9)))
    num_bytes = sum(
        count / kind.width * format_bytes(kind.format, (kind.width,)) for kind, count in (experts + dense).items()
    )
    assert token_weights_s(outline, known) == pytest.approx(num_bytes / 2e9)


def test_the_longer_of_reading_and_computing_is_never_hidden() -> None:
    for compute, read in ((1.0, 0.0), (0.0, 1.0), (2.0, 1.0), (1.0, 2.0)):
        for hidden in (0.0, 0.5, 1.0):
            step = Step(4, compute, 1.0, read, hidden)
            assert max(compute, read) <= step.seconds <= compute + read
            assert step.tokens_per_s == 4 / step.seconds


def test_a_gpu_waits_for_what_it_misses_and_for_nothing_where_it_holds_all() -> None:
    plan = plan_device_memory(LARGE, RuntimeConfig(), on(200_000), 24 << 30, 24 << 30)
    few, whole = (dataclasses.replace(plan, num_slots=slots) for slots in (0, LARGE.moe.total_experts))
    rates = CardRates(memory=900e9, link=20e9)
    used = LARGE.moe.num_layers * LARGE.moe.top_k * plan.sizes.mean_bytes
    resident = device_decode_step(whole, LARGE.moe, rates)
    assert resident.read_bytes == resident.read_s == 0
    assert resident.seconds == pytest.approx((LARGE.dense_bytes + used) / (0.6 * 900e9) + LARGE.moe.num_layers * 50e-6)
    waited = device_decode_step(few, LARGE.moe, rates).seconds - resident.seconds
    assert waited == pytest.approx(0.75 * used / 20e9)
