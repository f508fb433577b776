"""What models would be on a machine by the sizes that come with moeinf."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.engine.speed.rates import Reading
from moeinf.forecast.known_sizes import nearest_mixture, size_of
from moeinf.hardware import Machine
from moeinf.models.registry import FAMILIES
from moeinf.store.naming.catalogue import catalogue, known_model
from tests.support.rates import rates_of_this_machine

QWEN = known_model("qwen3:30b-a3b")


def machine(num_bytes: float) -> Machine:
    return Machine(int(num_bytes), "machine", 2, int(num_bytes))


def test_each_model_that_says_whose_sizes_it_has_finds_them() -> None:
    models = {model.name: model for model in catalogue().values()}
    assert len(models) > 150 and sum(size_of(model) is not None for model in models.values()) > 60
    for model in models.values():
        size = size_of(model)
        assert (size is not None) == bool(model.like), model.name
        if size is not None:
            experts = size.num_layers * size.num_experts * size.expert_bytes
            assert experts < size.store_bytes and size.dense_bytes < size.least_bytes, model.name
            assert 0 < size.active_params <= size.num_params


def test_shapes_that_public_text_tells_have_the_size_that_it_states() -> None:
    shapes = json.loads((Path(__file__).parents[3] / "docs" / "shapes.json").read_text())
    sizes = {model.like: size_of(model) for model in catalogue().values() if model.like in shapes}
    assert shapes.keys() == sizes.keys(), "each is the shape of a name"
    for name, shape in shapes.items():
        size, stated = sizes[name], shape.get("stated_billions")
        assert size is not None and shape["source"] and shape["repository"].count("/") == 1
        assert stated is None or size.num_params / 1e9 == pytest.approx(stated, rel=0.03), name


# A name of each family whose sizes are not known; those of the others say themselves what they are.
NAMED = {
    "qwen4_exp": "qwen3.8-flash-next",
    "deepseek_v41": "deepseek-v4.1-flash",
    "hy_v4": "hy4-preview",
    "hy_v4_vl": "hy4",
    "glm5_next": "glm-5.3-flash",
    "glm5v": "glm-5.2-vision",
    "longcat_flash_ngram": "longcat-flash-lite",
    "arctic": "arctic",
    "qwen3_omni_moe": "qwen3-omni",
    "cohere2_moe": "north-mini-code",
    "granitemoeshared": "granitemoeshared",
    "flex_olmo": "flexolmo",
    "granitemoe_swa": "granite-swash",
    "nemotron_h_omni": "nemotron-3-nano-omni",
    "axk2": "a.x-k2",
    "ernie4_5_vl_moe": "ernie-4.5-vl",
    "aria": "aria",
    "deepseek": "deepseek-moe",
    "maple": "maple-preview",
    "grove_moe": "grovemoe",
    "grok": "grok",
    "minicpm": "minicpm-moe",
    "granite": "granite3.3:2b",
    "glm4": "glm4:9b-0414",
    "olmo2": "olmo2",
    "starcoder2": "starcoder2",
}
WITHOUT = {"inkling2": "published in MXFP8 alone, which is refused"}


def test_each_family_that_runs_has_a_name() -> None:
    told = {size.architecture for model in catalogue().values() if (size := size_of(model)) is not None}
    families = {family.model_type for family in FAMILIES}
    assert not (told & NAMED.keys()) and not ((told | NAMED.keys()) & WITHOUT.keys())
    assert all(known_model(name) is not None for name in NAMED.values())
    assert families - told - NAMED.keys() == WITHOUT.keys()


@pytest.mark.parametrize(
    "family", ["qwen", "qwen3", "gemma", "glm", "deepseek", "kimi", "granite", "phi", "gpt-oss", "lfm"]
)
def test_a_bare_family_means_a_mixture_for_16_to_64_gb(family: str) -> None:
    model = known_model(family)
    assert model is not None and not model.dense
    size = size_of(model)
    assert size is None or (size.least_bytes < 12e9 and size.store_bytes < 48e9)


def test_more_memory_holds_more_and_is_faster() -> None:
    assert QWEN is not None
    size = size_of(QWEN)
    assert size is not None
    rates = replace(
        rates_of_this_machine(), memory=20e9, disk={1 << 20: 1e9}, reading={"q4_k": {2048: Reading(20e9, 10e9)}}
    )
    assert size.resident_share(machine(size.least_bytes - 1)) is None
    assert size.tokens_per_s(machine(size.least_bytes - 1), rates) == 0
    shares = [size.resident_share(machine(size.least_bytes + part * 4e9)) or 0.0 for part in range(6)]
    speeds = [size.tokens_per_s(machine(size.least_bytes + part * 4e9), rates) for part in range(6)]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    assert speeds == sorted(speeds) and speeds[0] < speeds[-1]
    experts = size.num_layers * size.top_k * size.expert_bytes
    assert speeds[-1] == pytest.approx(10e9 / (size.dense_bytes + experts)), "all is read at the rate of products"
    assert speeds[0] == pytest.approx(1 / ((size.dense_bytes + experts) / 10e9 + experts / 1e9)), "and all of the disk"


def test_the_mixture_that_is_about_as_large() -> None:
    near = nearest_mixture(18 * 10**9)
    assert near is not None and 14e9 < near[1].store_bytes < 23e9 and near[1].num_experts > 1
