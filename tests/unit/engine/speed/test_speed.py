"""A token takes what its weights, its layers and its reads take, on the CPU as on a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.memory.device_plan import plan_device_memory
from moeinf.engine.speed.rates import CardRates, Kind, Reading
from moeinf.engine.speed.speed import Step, device_decode_step
from moeinf.engine.speed.weight_bytes import (
    dense_weights,
    expert_weights,
    formats_text,
    head_weights,
    main_kinds,
    token_bytes,
    token_weights,
    token_weights_s,
)
from moeinf.engine.stored.outline import outline_of
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.types import format_bytes
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint
from tests.support.footprints import LARGE, on
from tests.support.rates import PLAIN

EXPERT = 3 * 128 * 64  # weights of one expert of the embedded model; a token uses 4 in each of 6 layers
ATTENTION = 128 * (128 + 64 + 64 + 128)  # q, k, v and o of one layer
ROUTERS_AND_NORMS = 6 * (32 * 128 + 2 * 128 + 2 * 32) + 128
VOCABULARY = 4096 * 128


def test_a_tied_embedding_is_read_as_the_head(demo: StoredModel) -> None:
    weights = 6 * (4 * EXPERT + ATTENTION) + ROUTERS_AND_NORMS + VOCABULARY
    assert token_bytes(outline_of(demo)) == 2 * weights
    assert formats_text(outline_of(demo)) == "bf16"


def test_a_head_of_its_own_leaves_the_embedding_out(tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant="q8_0"), home=tmp_path)
    quantised = 6 * (4 * EXPERT + ATTENTION) + VOCABULARY
    assert token_bytes(outline_of(stored)) == quantised // 32 * 34 + 2 * ROUTERS_AND_NORMS
    assert formats_text(outline_of(stored)) == "q8_0"


def test_formats_that_differ_are_both_told(tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant_experts="q4_0", quant_dense="q8_0"), home=tmp_path)
    assert formats_text(outline_of(stored)) == "q4_0, dense q8_0"


def test_an_untied_embedding_is_not_counted(tmp_path: Path) -> None:
    tensors = random_tensors()
    stored = pull(str(write_checkpoint(tmp_path / "checkpoint", tensors)), home=tmp_path / "home")
    dense = sum(t.numel() for name, t in tensors.items() if ".experts." not in name and "embed_tokens" not in name)
    expert = 3 * CONFIG["hidden_size"] * CONFIG["moe_intermediate_size"]
    assert token_bytes(outline_of(stored)) == 2 * (dense + 2 * 2 * expert)  # bf16; two layers, two experts in each


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
