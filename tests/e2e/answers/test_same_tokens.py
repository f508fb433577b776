"""The first promise: the same tokens for every cache size, policy, predictor, reader, prefetch on or off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf import _native
from moeinf._native import ExpertKernel, Kernels, available_isas
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.memory import plan
from moeinf.engine.model import Model
from moeinf.engine.runner import ModelRunner
from moeinf.engine.weights.expert_files import expert_parts
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.layers.weights import StoredTensor
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.runtime.policy.predictors import NO_PREDICTOR, PREDICTORS
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array, Profiler
from tests.oracles.resident_experts import ResidentExperts

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
NUM_TOKENS = 40


def tokens(stored: StoredModel, admission: str = "", **options: Any) -> list[int]:
    with Model(stored, RuntimeConfig.of(**options).changed(admission=admission)) as model:
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
        model.tier.check_integrity()
        stats, shape = answer.stats, stored.manifest.moe
        passed = len(stats.token_s) + stats.drafts.drafted - stats.drafts.accepted
        for cache, count in ((stats.prefill_cache, stats.prompt_tokens), (stats.decode_cache, passed)):
            assert cache.hits + cache.misses == count * shape.num_layers * shape.top_k
        return answer.token_ids


def plain_tokens(stored: StoredModel) -> list[int]:
    """Greedy tokens with every weight read by plain Python into memory and every expert resident."""
    config = json.loads((stored.path / "config.json").read_text())
    data = np.frombuffer(stored.dense_path.read_bytes(), np.uint8)
    tensors = {
        spec.name: StoredTensor(data[spec.offset_bytes : spec.offset_bytes + spec.num_bytes], spec.dtype, spec.shape)
        for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense)
    }
    kernels, layout, moe = Kernels(2), stored.manifest.layout, stored.manifest.moe
    memory = np.concatenate([np.frombuffer(path.read_bytes(), np.uint8) for path in stored.shard_paths])
    experts = ResidentExperts(
        ExpertKernel(kernels, memory, expert_parts(layout)),
        lambda layer, expert: (layer * moe.num_experts + expert) * layout.stride_bytes,
    )
    weights = NativeLayers(kernels, tensors, stored.manifest.info.dtype)
    model = family_of(config).build(weights, experts, Profiler())
    with Model(stored, RuntimeConfig()) as streamed:
        prompt, chunk = streamed.encode(PROMPT), streamed.plan.prefill_chunk
    cache = model.new_cache(len(prompt) + NUM_TOKENS)
    assert len(prompt) < chunk
    chosen = [int(model.forward(prompt, cache)[-1].argmax())]
    while len(chosen) < NUM_TOKENS:
        chosen.append(int(model.forward(chosen[-1:], cache)[-1].argmax()))
    return chosen


@pytest.fixture(scope="module")
def oracle(demo: StoredModel) -> list[int]:
    return plain_tokens(demo)


@pytest.mark.parametrize("format", ["q8_0", "q4_k", "q4_0", "mxfp4"])
def test_tokens_are_the_same_for_every_cache_size_in_every_format(format: str, tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant=format), home=tmp_path)
    wanted = plain_tokens(stored)
    for cache in ("8%", "40%", "100%"):
        assert tokens(stored, expert_cache=cache) == wanted


def test_tokens_of_a_quantised_cache_are_the_same_however_a_prompt_is_cut(demo: StoredModel) -> None:
    wanted = tokens(demo, kv_cache="q8_0", expert_cache="8%")
    assert tokens(demo, kv_cache="q8_0", prefill_chunk=5, threads=1) == wanted


@pytest.mark.parametrize("isa", available_isas())
def test_tokens_are_the_same_for_every_cache_size_on_every_instruction_set(demo: StoredModel, isa: str) -> None:
    assert tokens(demo, expert_cache="8%", isa=isa) == tokens(demo, expert_cache="100%", isa=isa)


def test_tokens_are_drawn_on_the_instruction_set_that_computes(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw_token = list[str](), _native.draw_token

    def draw(*given: Any, isa: str = "") -> int:
        drawn.append(isa)
        return draw_token(*given, isa=isa)

    monkeypatch.setattr(_native, "draw_token", draw)
    with Model(demo, RuntimeConfig.of(isa="generic")) as model:
        model.generate(PROMPT, model.params(temperature=1.0, num_predict=2))
    assert set(drawn) == {"generic"}


@pytest.mark.parametrize("format", [None, "q8_0", "q4_0", "iq4_nl", "q4_k", "mxfp4"])
def test_logits_do_not_depend_on_how_a_prompt_is_cut(format: str | None, tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant=format), home=tmp_path)
    ids = np.random.default_rng(3).integers(3, 200, 100).tolist()
    for isa in available_isas():
        with Model(stored, RuntimeConfig.of(context=128, isa=isa)) as model:
            runner = model.runner

            def in_chunks(size: int, prompt: list[int], runner: ModelRunner = runner) -> Float32Array:
                runner.cache.truncate(0)
                return np.concatenate(
                    [
                        runner.network.forward(
                            prompt[at : at + size], runner.cache, of_tokens=len(prompt), last_only=False
                        )
                        for at in range(0, len(prompt), size)
                    ]
                )

            for prompt in (ids, ids[:40]):
                whole = in_chunks(len(prompt), prompt)
                for size in (7, 30, 64):
                    assert np.array_equal(in_chunks(size, prompt), whole)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_tokens_are_the_same_for_every_prefill_chunk(tmp_path: Path, chunk: int) -> None:
    stored, prompt = pull("demo", PullOptions(quant="mxfp4"), home=tmp_path), PROMPT * 6
    with Model(stored, RuntimeConfig.of(prefill_chunk=chunk)) as cut, Model(stored, RuntimeConfig()) as whole:
        answers = [
            model.generate(prompt, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
            for model in (cut, whole)
        ]
        assert answers[0].stats.prompt_tokens > 64
    assert answers[0].token_ids == answers[1].token_ids


@pytest.mark.parametrize("policy", ["lru", "next-use"])
def test_tokens_are_the_same_where_slots_lend_memory_to_long_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(plan, "PREFILL_CHUNK", 64)
    stored, prompt = pull("demo", PullOptions(quant="mxfp4"), home=tmp_path), PROMPT * 12
    with Model(stored, RuntimeConfig.of(expert_cache="100%", prefill_chunk=64)) as whole:
        params = whole.params(temperature=0.0, num_predict=NUM_TOKENS, stop=())
        wanted = whole.generate(prompt, params).token_ids
    with Model(stored, RuntimeConfig.of(expert_cache="80%", policy=policy)) as model:
        long, tier, step = model.plan.long_pieces, model.tier, model.runner.step
        assert long is not None
        passes = list[tuple[int, int]]()

        def noted(parts: Any, between_layers: Any = None) -> Float32Array:
            logits: Float32Array = step(parts, between_layers)
            passes.append((len(parts[0].ids), tier.num_slots))
            return logits

        monkeypatch.setattr(model.runner, "step", noted)
        assert model.generate(prompt, params).token_ids == wanted
        tier.check_integrity()
    lent = tier.slots_in(model.plan.cache_bytes - long.num_bytes)
    assert passes[0] == (long.tokens, lent) and lent < model.plan.num_slots
    assert passes[-1] == (1, model.plan.num_slots), "decoding has all slots"


def test_a_prompt_that_is_given_again_or_was_given_in_part_has_the_same_answer(tmp_path: Path) -> None:
    """Whatever the cache holds of it: the size of the whole prompt decides how the rest is rounded."""
    stored, prompt = pull("demo", PullOptions(quant="mxfp4"), home=tmp_path), PROMPT * 6
    with Model(stored, RuntimeConfig()) as model:
        params = model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=())
        wanted = model.generate(prompt, params)
        for cached in (prompt, prompt[:-3], prompt[:-20]):
            model.generate(cached, params)
            answer = model.generate(prompt, params)
            assert answer.stats.cached_tokens > 64 and answer.token_ids == wanted.token_ids


@pytest.mark.parametrize("threads", [1, 3])
def test_tokens_do_not_depend_on_the_number_of_threads(demo: StoredModel, oracle: list[int], threads: int) -> None:
    assert tokens(demo, expert_cache="20%", threads=threads) == oracle


@pytest.mark.parametrize("cache", ["192KiB", "5%", "17%", "50%", "100%", "auto"])
@pytest.mark.parametrize("prefetch", [False, True], ids=["demand", "prefetch"])
def test_tokens_are_the_same_for_every_cache_size(
    demo: StoredModel, oracle: list[int], cache: str, prefetch: bool
) -> None:
    assert tokens(demo, expert_cache=cache, prefetch=prefetch) == oracle


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_the_same_for_every_policy(demo: StoredModel, oracle: list[int], policy: str) -> None:
    assert tokens(demo, expert_cache="12%", policy=policy) == oracle


@pytest.mark.parametrize("predictor", [*PREDICTORS, "look-ahead+eamc"])
def test_tokens_are_the_same_for_every_predictor(demo: StoredModel, oracle: list[int], predictor: str) -> None:
    assert tokens(demo, expert_cache="25%", predictor=predictor) == oracle
    assert tokens(demo, expert_cache="25%", predictor=predictor) == oracle, "with what the first run learned"
    if predictor != NO_PREDICTOR:
        assert tokens(demo, expert_cache="25%", predictor=predictor, admission="none") == oracle


@pytest.mark.parametrize("options", [{"reader": "pure"}, {"direct_io": False}, {"queue_depth": 1}], ids=str)
def test_tokens_are_the_same_for_every_way_of_reading(
    demo: StoredModel, oracle: list[int], options: dict[str, Any]
) -> None:
    assert tokens(demo, expert_cache="20%", **options) == oracle


def test_the_smallest_cache_is_one_layers_choice_of_experts(demo: StoredModel) -> None:
    smallest = demo.manifest.moe.top_k * demo.manifest.layout.stride_bytes
    with Model(demo, RuntimeConfig.of(expert_cache=f"{smallest}B")) as m:
        assert m.plan.num_slots == demo.manifest.moe.top_k
