"""The first promise: the same tokens for every cache size, policy, predictor, reader, prefetch on or off."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.engine import Model
from moeinf.laps import Laps
from moeinf.models import architecture
from moeinf.models.layers import expert_mlp
from moeinf.runtime.experts import ResidentExperts
from moeinf.runtime.policies import POLICIES
from moeinf.runtime.predict import PREDICTORS
from moeinf.runtime.tiers import TORCH_DTYPES
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
NUM_TOKENS = 40


def tokens(stored: StoredModel, **options: Any) -> list[int]:
    with Model(stored, RuntimeConfig(**options)) as model:
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
        model.tier.check_integrity()
        stats, shape = answer.stats, stored.manifest.moe
        for cache, count in ((stats.prefill_cache, stats.prompt_tokens), (stats.decode_cache, len(stats.token_s))):
            assert cache.hits + cache.misses == count * shape.num_layers * shape.top_k
        return answer.token_ids


@pytest.fixture(scope="module")
def oracle(demo: StoredModel) -> list[int]:
    """Greedy tokens with every weight read by plain Python into memory and every expert resident."""
    config = json.loads((demo.path / "config.json").read_text())
    weights = {}
    data = bytearray(demo.dense_path.read_bytes())
    for spec in dense_tensors(demo.dense_path):
        flat = torch.frombuffer(data, dtype=TORCH_DTYPES[spec.dtype], offset=spec.offset_bytes,
                                count=spec.num_bytes // TORCH_DTYPES[spec.dtype].itemsize)
        weights[spec.name] = flat.view(spec.shape)
    layout = demo.manifest.layout
    shards = [bytearray(path.read_bytes()) for path in demo.shard_paths]

    def expert(layer: int, index: int) -> list[torch.Tensor]:
        start = index * layout.stride_bytes
        return [torch.frombuffer(shards[layer], dtype=TORCH_DTYPES[t.dtype], offset=start + t.offset_bytes,
                                 count=t.num_bytes // TORCH_DTYPES[t.dtype].itemsize).view(t.shape)
                for t in layout.tensors]

    model = architecture(config).build(config, weights, ResidentExperts(expert, expert_mlp), Laps())
    with Model(demo, RuntimeConfig()) as streamed:
        prompt, chunk = streamed.encode(PROMPT), streamed.config.prefill_chunk
    cache = model.new_cache(len(prompt) + NUM_TOKENS)
    assert len(prompt) < chunk
    chosen = [int(model.forward(torch.tensor(prompt), cache)[-1].argmax())]
    while len(chosen) < NUM_TOKENS:
        chosen.append(int(model.forward(torch.tensor(chosen[-1:]), cache)[-1].argmax()))
    return chosen


@pytest.mark.parametrize("cache", ["196608", "5%", "17%", "50%", "100%", "auto"])
@pytest.mark.parametrize("prefetch", [False, True], ids=["demand", "prefetch"])
def test_tokens_are_the_same_for_every_cache_size(demo: StoredModel, oracle: list[int], cache: str, prefetch: bool
                                                  ) -> None:
    assert tokens(demo, expert_cache=cache, prefetch=prefetch) == oracle


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_the_same_for_every_policy(demo: StoredModel, oracle: list[int], policy: str) -> None:
    assert tokens(demo, expert_cache="12%", policy=policy) == oracle


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_tokens_are_the_same_for_every_predictor(demo: StoredModel, oracle: list[int], predictor: str) -> None:
    assert tokens(demo, expert_cache="25%", predictor=predictor) == oracle
    assert tokens(demo, expert_cache="25%", predictor=predictor) == oracle, "with what the first run learnt"


@pytest.mark.parametrize("options", [{"reader": "pure"}, {"direct_io": False}, {"queue_depth": 1}], ids=str)
def test_tokens_are_the_same_for_every_way_of_reading(demo: StoredModel, oracle: list[int], options: dict[str, Any]
                                                      ) -> None:
    assert tokens(demo, expert_cache="20%", **options) == oracle


def test_the_smallest_cache_is_one_layers_choice_of_experts(demo: StoredModel) -> None:
    with Model(demo, RuntimeConfig(expert_cache=str(demo.manifest.moe.top_k * demo.manifest.layout.stride_bytes))) as m:
        assert m.plan.num_slots == demo.manifest.moe.top_k
