"""What a model reads before anybody has asked it something changes no answer, only what the first one waits for."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.runtime.warm_start import most_used
from moeinf.store.library import StoredModel
from moeinf.types import MoeShape

PROMPT = "Once upon a time"
CONFIG = RuntimeConfig.of(expert_cache="33%", context=128, threads=1)


@pytest.fixture
def known(demo: StoredModel, tmp_path: Path) -> StoredModel:
    """The embedded model after one request, which its store remembers."""
    path = tmp_path / "demo"
    shutil.copytree(demo.path, path)
    stored = replace(demo, path=path)
    (path / "eamc.npz").unlink(missing_ok=True)
    answer(stored, CONFIG, wait_s=None)
    return stored


def answer(stored: StoredModel, config: RuntimeConfig, wait_s: float | None) -> tuple[list[int], float, int]:
    """Token ids of a greedy answer, the hit rate of its prompt, and the experts that were there before it.

    wait_s: between the beginning of the warm start and the request; None: without a warm start.
    """
    with Model(stored, config) as model:
        if wait_s is not None:
            model.warm_up()
            give_up_at = time.monotonic() + wait_s
            while (warm := model.generator.warm_start) is not None and warm.running and time.monotonic() < give_up_at:
                time.sleep(0.001)
        before = len(model.tier.snapshot().resident)
        done = model.generate(PROMPT, model.params(num_predict=24, temperature=0))
        model.tier.check_integrity()
        assert model.generator.warm_start is None
        return done.token_ids, done.stats.prefill_cache.hit_rate, before


def test_the_first_request_finds_what_the_last_run_used(known: StoredModel) -> None:
    cold, cold_hits, nothing = answer(known, CONFIG, wait_s=None)
    warm, warm_hits, slots = answer(known, CONFIG, wait_s=60.0)
    assert warm == cold and nothing == 0 and slots > 0
    assert warm_hits > cold_hits


@pytest.mark.parametrize("wait_s", [0.0, 0.003])
def test_a_request_in_the_middle_of_it_is_answered_alike(known: StoredModel, wait_s: float) -> None:
    assert answer(known, CONFIG, wait_s)[0] == answer(known, CONFIG, None)[0]


def test_without_prefetch_or_anything_known_nothing_is_read(known: StoredModel) -> None:
    with Model(known, CONFIG.changed(prefetch=False)) as model:
        model.warm_up()
        assert model.generator.warm_start is None
    (known.path / "eamc.npz").unlink()
    with Model(known, CONFIG) as model:
        model.warm_up()
        assert model.generator.warm_start is None


def test_a_model_is_closed_in_the_middle_of_it(known: StoredModel) -> None:
    with Model(known, CONFIG) as model:
        model.warm_up()


def test_the_most_used_come_first_and_the_unused_not_at_all() -> None:
    shape = MoeShape(num_layers=2, num_experts=3, top_k=1)
    collection = ActivationCollection(shape)
    for counts in ([[8, 2, 0], [5, 5, 0]], [[0, 1, 0], [1, 0, 0]]):
        matrix = ActivationMatrix(shape)
        matrix.counts += np.array(counts)
        collection.add(matrix)
    assert most_used(collection).tolist() == [3, 1, 0, 4]
    assert most_used(ActivationCollection(shape)).tolist() == []
