"""Maps from states to routing move reads, and no token; on a GPU look-ahead takes their place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored.tuned_file import MAPS_FILE, path_of, save_maps
from moeinf.store.library import StoredModel
from tests.support.gpu.emulated_gpu import in_fours
from tests.support.random_maps import random_maps

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"


@pytest.fixture
def tuned(demo: StoredModel) -> Iterator[StoredModel]:
    save_maps(demo, random_maps(demo.manifest.moe, demo.manifest.info.hidden_size, model_id=demo.id))
    yield demo
    path_of(demo, MAPS_FILE).unlink()


def answer(model: Model) -> list[int]:
    return model.generate(PROMPT, model.params(temperature=0.0, num_predict=16, stop=())).token_ids


@pytest.fixture(scope="module")
def wanted(demo: StoredModel) -> list[int]:
    with Model(demo, RuntimeConfig.of(device="cpu", expert_cache="100%")) as model:
        return answer(model)


@pytest.mark.parametrize("predictor", ["", "tuned", "look-ahead+tuned", "tuned+cross-layer"])
@pytest.mark.parametrize("cache", ["100%", "50%", "20%", "5%"])
def test_tokens_are_the_same(tuned: StoredModel, wanted: list[int], cache: str, predictor: str) -> None:
    config = RuntimeConfig.of(device="cpu", expert_cache=cache, predictor=predictor, prefill_chunk=7)
    with Model(tuned, config) as model:
        assert answer(model) == wanted
        assert answer(model) == wanted
        model.tier.check_integrity()
        assert model.predictor == (predictor or "tuned")
        assert (model.tier.stats.prefetches > 0) == (cache != "100%")


def test_a_gpu_goes_without_them_and_says_so(tuned: StoredModel) -> None:
    notes: list[str] = []
    config = RuntimeConfig.of(predictor="tuned", expert_cache="40%")
    with Model(tuned, config, Reporting(notify=notes.append), gpu=in_fours(tuned)) as model:
        answer(model)
        assert not model.tier.all_resident
    assert [note for note in notes if "tuned" in note] == [
        "the predictor tuned works on the CPU alone: look-ahead predicts here"
    ]
