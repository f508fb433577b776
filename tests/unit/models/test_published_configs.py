"""Configurations as published: they give the sizes that their makers name, and memory is divided for each.

docs/models.md says the same of them, and what the table of families says.
"""

from __future__ import annotations

import json
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint
from moeinf.engine.memory.plan import MIN_CONTEXT, plan_memory, program_bytes, smallest_bytes
from moeinf.errors import OutOfMemoryError, UnsupportedModelError
from moeinf.hardware import Machine
from moeinf.models.family import family_of
from moeinf.models.registry import FAMILIES
from tests.support.true_configs import PUBLISHED

ROOT = Path(__file__).parents[3]
ALL = sorted(path.parent.name for path in PUBLISHED.glob("*/config.json"))


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((PUBLISHED / name / "config.json").read_text())
    return config


@cache
def generator() -> dict[str, Any]:
    """The script that writes the page, which makes a plan for every published model."""
    return runpy.run_path(str(ROOT / "docs" / "generate_models.py"))


def footprint_of(name: str) -> Footprint:
    """What the page of models is made from."""
    footprint: Footprint = generator()["at_4_bits"](PUBLISHED / name / "config.json")[1]
    return footprint


@pytest.mark.parametrize(
    ("name", "billions", "active", "context"),
    [
        ("command-a-plus", 218, 25, 200_000),
        ("dbrx-instruct", 132, 36, 32_768),
        ("deepseek-ocr-2", 3, 1, 8_192),
        ("deepseek-v3.2", 672, 38, 163_840),
        ("deepseek-v4-flash", 284, 14, 1_048_576),
        ("deepseek-v4-pro", 1573, 50, 1_048_576),
        ("dots.llm1", 143, 14, 32_768),
        ("ernie-4.5-21b-a3b", 22, 3, 131_072),
        ("gemma-4-26b-a4b", 25, 4, 262_144),
        ("glm-4.5", 353, 34, 131_072),
        ("glm-4.5v", 107, 13, 65_536),
        ("glm-4.7-flash", 30, 4, 202_752),
        ("glm-5", 744, 42, 202_752),
        ("glm-5.2", 743, 41, 1_048_576),
        ("hunyuan-a13b", 80, 13, 32_768),
        ("jamba-v0.1", 52, 12, 262_144),
        ("k2-horizon-36b", 37, 6, 524_288),
        ("k2-horizon-375b", 379, 27, 524_288),
        ("kimi-k2", 1026, 33, 131_072),
        ("kimi-linear-48b-a3b", 49, 3, 1_048_576),
        ("kimi-k2.5", 1026, 33, 262_144),
        ("laguna-s-2.1", 118, 8, 262_144),
        ("laguna-xs.2", 33, 3, 262_144),
        ("k-exaone-236b-a23b", 237, 24, 262_144),
        ("ling-lite-1.5", 17, 3, 32_768),
        ("llama-4-maverick", 401, 17, 1_048_576),
        ("llama-4-scout", 108, 17, 10_485_760),
        ("longcat-flash-lite", 69, 5, 327_680),
        ("mimo-v2-flash", 309, 15, 262_144),
        ("mimo-v2.6-flash", 309, 15, 1_048_576),
        ("minimax-m1-80k", 456, 48, 10_240_000),
        ("minimax-m2.5", 229, 11, 196_608),
        ("minimax-m2.7", 229, 11, 204_800),
        ("minimax-m3", 426, 26, 1_048_576),
        ("nemotron-3-nano", 32, 4, 262_144),
        ("nemotron-3-super", 121, 13, 262_144),
        ("nemotron-3-ultra", 549, 56, 262_144),
        ("qwen3-coder-480b", 480, 35, 262_144),
        ("solar-open-100b", 103, 12, 131_072),
        ("smallthinker-4ba0.6b", 4, 1, 32_768),
        ("qwen3-next-80b-a3b-thinking", 80, 4, 262_144),
        ("qwen3.8-flash-next", 177, 7, 262_144),
        ("deepseek-v4.1-flash", 748, 17, 1_048_576),
        ("qwen3.5-35b-a3b", 35, 3, 262_144),
        ("qwen3-vl-30b-a3b", 31, 3, 262_144),
        ("qwen3-vl-235b-a22b", 235, 22, 262_144),
    ],
)
def test_a_published_config_gives_the_sizes_of_its_model(name: str, billions: int, active: int, context: int) -> None:
    info = footprint_of(name).info
    assert round(info.num_params / 1e9) == billions
    assert round(info.active_params / 1e9) == active
    assert info.context_length == context


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("deepseek-moe-16b", 16_375_728_128),
        ("gemma-3-27b-it", 27_432_406_640 - 423_060_336),  # less its tower
        ("granite-4.1-30b", 28_865_728_512),
        ("k-exaone-236b-a23b", 237_099_669_632 - 528_513_280),  # less the layer that guesses a token ahead
        ("kolibri-1", 78_103_074_560),
        ("lfm2.5-8b-a1b", 8_467_856_832),
        ("longcat-flash-lite", 69_073_335_552 - 510_870_528),  # less the layer that guesses, and its own embedding
        ("mellum2-12b-a2.5b", 12_149_923_072),
        ("north-mini-code-1.0", 30_484_303_872),
        ("olmo-2-7b", 7_298_617_344),
        ("sarvam-30b", 32_152_650_368),
        ("sarvam-105b", 106_031_767_424),
        ("smollm3-3b", 3_075_098_624),
        ("trinity-large-base", 398_635_286_016),
        ("zaya1-8b", 8_840_489_464),
    ],
)
def test_a_published_config_gives_as_many_weights_as_the_hub_counts(name: str, weights: int) -> None:
    assert footprint_of(name).info.num_params == weights


def test_ling_clamps_the_experts_of_its_last_layers() -> None:
    family: Any = family_of(config_of("ling-3.0-flash"))
    assert [form.limit for form in family.tensors.forms] == [0.0] * 33 + [4.0] * 7
    assert family.spec.blocks.shared.limits == dict(zip(range(34, 42), [5.0] * 6 + [7.0] * 2, strict=True))
    assert family.decoder.attention.rope.rotary_dim == 64  # whatever partial_rotary_factor says


def test_a_published_gemma_leaves_out_what_is_usual() -> None:
    said, unsaid = (family_of(config_of(name)) for name in ("medgemma-27b-it", "gemma-3-27b-it"))
    assert parts_of(said) == parts_of(unsaid)


@pytest.mark.parametrize("name", ["glm-5.2", "deepseek-v3.2"])
def test_layers_may_have_the_names_that_checkpoints_gave_them_first(name: str) -> None:
    """As nvidia/GLM-5.2-NVFP4 has them."""
    config = config_of(name)
    older = config | {"layer_types": ["deepseek_sparse_attention"] * config["num_hidden_layers"]}
    assert parts_of(family_of(older)) == parts_of(family_of(config))


@pytest.mark.parametrize("name", ALL)
def test_memory_is_divided_for_a_published_model(name: str) -> None:
    footprint = footprint_of(name)
    info, moe, stride = footprint.info, footprint.moe, footprint.layout.stride_bytes
    least = smallest_bytes(footprint, num_threads=2)
    everything = least + 2 * moe.num_layers * moe.num_experts * stride + (64 << 30)
    for available in (2 * least + (2 << 30), everything):
        plan = plan_memory(footprint, RuntimeConfig(), Machine(available, "machine", 2))
        assert plan.total_bytes + program_bytes(footprint) <= available
        assert moe.top_k <= plan.num_slots <= moe.num_layers * moe.num_experts
        assert min(MIN_CONTEXT, info.context_length) <= plan.context <= info.context_length
    assert plan.num_slots == moe.num_layers * moe.num_experts
    with pytest.raises(OutOfMemoryError, match="not enough memory"):
        plan_memory(footprint, RuntimeConfig(), Machine(least - (1 << 20), "machine", 2))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("glm-5.2", {"head_dim": 128}),
        ("hunyuan-a13b", {"use_cla": True}),
        ("hunyuan-a13b", {"use_mla": True}),
        ("laguna-s-2.1", {"mlp_only_layers": [1]}),
        ("laguna-s-2.1", {"gating_types": ["per_element"] * 48}),
        ("laguna-xs.2", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}),
        ("deepseek-ocr-2", {"architectures": ["DeepseekVLV2ForCausalLM"]}),
        ("deepseek-ocr-2", {"architectures": None}),
        ("minimax-m1-80k", {"postnorm": False}),
        ("minimax-m1-80k", {"shared_intermediate_size": 1024}),
        ("deepseek-ocr-2", {"language_config": {"use_mla": True}}),
        ("command-a-plus", {"text_config": {"model_type": "cohere2"}}),
        ("ling-3.0-flash", {"architectures": ["BailingMoeV2_5ForCausalLM"]}),
        ("ling-3.0-flash", {"gated_attention_proj_granularity_type": "element_wise"}),
        ("ling-3.0-flash", {"moe_shared_expert_intermediate_size": 1536}),
        ("ling-3.0-flash", {"no_kda_lora": False}),
        ("zaya1-8b", {"rope_parameters": {"hybrid": {"rope_theta": 5e6}}}),
    ],
)
def test_what_a_published_field_does_not_mean_is_refused(name: str, changed: dict[str, Any]) -> None:
    """These fields are taken with the values that they were published with, which change nothing."""
    with pytest.raises(UnsupportedModelError, match=next(iter(changed)).replace("rope_parameters", "partial_rotary")):
        family_of(config_of(name) | changed)


def parts_of(family: Any) -> list[Any]:
    spec = family.spec
    return [repr(spec.decoder), spec.blocks, list(spec.mixers), spec.connections, family.tensors.dense]


def test_deepseek_ocr_is_read_as_published_and_as_saved() -> None:
    """Published under the model_type of DeepSeek-VL2, which is another model, with layers counted otherwise."""
    published = config_of("deepseek-ocr-2")
    text = published["language_config"] | {"mlp_layer_types": ["dense"] + ["sparse"] * 11}
    saved: Any = family_of({"model_type": "deepseek_ocr2", "text_config": text})
    first: Any = family_of(published | {"architectures": ["DeepseekOCRForCausalLM"]})
    assert parts_of(first) == parts_of(saved)
    for name in ("model.vision_model.embeddings.class_embedding", "model.image_newline"):  # of the first alone
        assert any(re.fullmatch(pattern, name) for pattern in first.tensors.ignored)


def test_minimax_is_read_as_published_and_as_saved() -> None:
    published = config_of("minimax-m1-80k") | {"layernorm_mlp_beta": 0.5}
    kinds = ["linear_attention"] * 7 + ["full_attention"]
    scales = {f"{kind}_alpha_factor": 3.5565588200778455 for kind in ("full_attn", "linear_attn", "mlp")}
    own = {name: value for name, value in published.items() if "layernorm" not in name and name != "attn_type_list"}
    saved: Any = family_of(own | {"model_type": "minimax", "layer_types": kinds * 10, "mlp_beta_factor": 0.5} | scales)
    for model_type in ("minimax_m1", "minimax_text_01"):
        found: Any = family_of(published | {"model_type": model_type})
        assert parts_of(found) == parts_of(saved)


def test_the_pages_are_what_their_script_writes() -> None:
    for name, page in generator()["PAGES"].items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == page(PUBLISHED), "run: python docs/generate_models.py"


def test_each_family_has_a_section_on_its_page() -> None:
    assert list(generator()["examples"]()) == [family.model_type for family in FAMILIES]


def test_each_family_has_a_module_of_its_own() -> None:
    families = ROOT / "src" / "moeinf" / "models" / "families"
    assert all((families / f"{family.module.replace('.', '/')}.py").is_file() for family in FAMILIES)
