"""A GGUF file of mixed types has slots of several sizes: the bits of equal ones, whatever the cache."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from moeinf.bench.forecast.forecast_report import memory_rows
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.stored.outline import outline_of
from moeinf.forecast.forecast import forecast
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.store.library import StoredModel
from tests.support.footprints import on
from tests.support.mixed_gguf import wide_model, without_vocabulary
from tests.support.rates import PLAIN

IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
TYPES = ("Q4_K", "Q4_K", "Q8_0", "Q2_K", "Q3_K", "Q2_K", "BF16", "Q6_K", "Q8_0")  # a layer's gate, up and down


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    with pytest.MonkeyPatch.context() as patch:
        without_vocabulary(patch)
        return wide_model(tmp_path_factory.mktemp("sizes"), TYPES)


def seen(stored: StoredModel, num_sizes: int, **options: Any) -> np.ndarray:
    """The logits of a prompt, and of tokens behind it, while slots are given back and taken again."""
    with Model(stored, RuntimeConfig.of(context=64, threads=1, device="cpu", **options)) as model:
        sizes = model.plan.sizes
        assert len(sizes.class_bytes) == num_sizes
        assert model.tier.num_bytes == model.plan.cache_bytes
        network: Any = model.runner.network
        found = [network.forward(IDS[:-4], model.runner.cache, last_only=False)]
        least = sizes.least_slots
        for token, slots in zip(
            IDS[-4:], (least, model.tier.most_slots, least + 1, model.tier.most_slots), strict=True
        ):
            found.append(model.runner.forward([token], lambda: None))
            model.tier.check_integrity()
            assert model.tier.resize(min(slots, model.tier.most_slots))
        stats = model.tier.stats
        assert stats.hits + stats.misses == len(IDS) * stored.manifest.moe.num_layers * stored.manifest.moe.top_k
    return np.concatenate(found)


@pytest.fixture(scope="module")
def all_resident(stored: StoredModel) -> np.ndarray:
    return seen(stored, 3, expert_cache="100%")


@pytest.mark.parametrize(
    ("num_sizes", "options"),
    [
        (3, {"expert_cache": "50%"}),
        (3, {"expert_cache": "60%", "prefetch": False}),
        (3, {"expert_cache": "50%", "reader": "pure"}),
        (3, {"expert_cache": "50%", "prefill_chunk": 1}),
        *((3, {"expert_cache": "55%", "policy": policy}) for policy in POLICIES),
        (1, {"expert_cache": "20%"}),
    ],
    ids=str,
)
def test_slots_of_several_sizes_give_the_bits_of_all_resident(
    stored: StoredModel, all_resident: np.ndarray, num_sizes: int, options: dict[str, Any]
) -> None:
    assert np.array_equal(seen(stored, num_sizes, **options), all_resident)


def test_a_plan_says_which_sizes_slots_have_and_what_memory_was_too_short_for(stored: StoredModel) -> None:
    rows = []
    for share in ("50%", "20%"):
        config = RuntimeConfig.of(expert_cache=share, device="cpu")
        rows.append(dict(memory_rows(forecast(outline_of(stored), config, on(4000), lambda _: PLAIN, {})))["experts"])
    assert re.search(r"\d+ of 24, in slots of [\d.]+ KiB or [\d.]+ KiB or [\d.]+ KiB$", rows[0]), rows[0]
    assert rows[1].endswith("each (1 of 3 sizes: more would leave some layers fewer experts)"), rows[1]


@pytest.mark.parametrize("share", ["50%", "100%"])
def test_equal_slots_give_the_same(
    stored: StoredModel, all_resident: np.ndarray, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlotSizes, "worth_in", lambda sizes, room: sizes.equal())
    assert np.array_equal(seen(stored, 1, expert_cache=share), all_resident)
