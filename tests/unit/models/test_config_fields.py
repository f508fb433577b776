"""config.json is read strictly: every bad field is refused by name."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3
from tests.support.configs.gpt_oss import GPT_OSS
from tests.support.configs.granitemoe import GRANITE
from tests.support.configs.longcat_flash_ngram import LONGCAT_NGRAM
from tests.support.configs.mixtral import MIXTRAL
from tests.support.configs.nllb_moe import NLLB
from tests.support.configs.olmoe import OLMOE
from tests.support.configs.phimoe import PHI
from tests.support.configs.qwen3_5_moe import QWEN3_5
from tests.support.configs.qwen3_moe import QWEN3
from tests.support.configs.qwen3_next import NEXT
from tests.support.configs.switch_transformers import SWITCH

BAD_NUMBERS = [0, -1, 1.5, "8", True, [8], 1 << 40]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (MIXTRAL, "hidden_size"),
        (MIXTRAL, "num_hidden_layers"),
        (MIXTRAL, "num_local_experts"),
        (MIXTRAL, "num_experts_per_tok"),
        (QWEN3, "head_dim"),
        (QWEN3, "moe_intermediate_size"),
        (OLMOE, "num_attention_heads"),
        (OLMOE, "vocab_size"),
        (OLMOE, "max_position_embeddings"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(config: dict[str, Any], field: str, bad: object) -> None:
    with pytest.raises(CheckpointError, match=field):
        family_of(config | {field: bad})


@pytest.mark.parametrize("config", [MIXTRAL, QWEN3, OLMOE], ids=lambda config: config["model_type"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "selu"),
        ("rope_scaling", {"type": "mrope"}),
        ("quantization_config", {"bits": 8}),
        ("rope_parameters", {"rope_type": "default", "mrope_section": [1, 1, 1]}),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}),
    ],
)
def test_a_field_that_changes_the_maths_and_is_not_handled_is_refused_by_name(
    config: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        family_of(config | {field: value})


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (GPT_OSS, "swiglu_alpha", 1.5),
        (GPT_OSS, "layer_types", ["full_attention", "chunked_attention", "full_attention"]),
        (GPT_OSS, "quantization_config", {"quant_method": "awq"}),
        (GRANITE, "activation_function", "gelu"),
        (PHI, "num_experts_per_tok", 4),
        (MIXTRAL, "attention_bias", True),
        (MIXTRAL, "per_layer_config", {"1": {"intermediate_size": 32}}),
    ],
)
def test_a_field_of_one_family_that_is_not_handled_is_refused_by_name(
    config: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        family_of(config | {field: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts_per_tok": 9},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"decoder_sparse_step": 4},
        {"mlp_only_layers": [0, 1, 2]},
    ],
    ids=str,
)
def test_fields_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        family_of(QWEN3 | changes)


@pytest.mark.parametrize("bad", [5, "1", [1.5], [True], {"0": 1}], ids=repr)
def test_a_list_of_layers_that_is_none_is_refused_by_name(bad: object) -> None:
    with pytest.raises(CheckpointError, match="mlp_only_layers"):
        family_of(QWEN3 | {"mlp_only_layers": bad})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(CheckpointError, match="moe_intermediate_size is missing"):
        family_of({k: v for k, v in QWEN3.items() if k != "moe_intermediate_size"})


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (MIXTRAL, "num_key_value_heads"),
        (GPT_OSS, "head_dim"),
        (NEXT, "head_dim"),
        (DEEPSEEK_V3, "q_lora_rank"),
        (DEEPSEEK_V3, "n_group"),
        (DEEPSEEK_V3, "topk_group"),
        (DEEPSEEK_V3, "n_shared_experts"),
        (DEEPSEEK_V3, "first_k_dense_replace"),
        (DEEPSEEK_V3, "routed_scaling_factor"),
        (SWITCH, "num_decoder_layers"),
    ],
)
def test_a_field_without_a_common_default_must_be_there(config: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError, match=f"{field} is missing"):
        family_of({name: value for name, value in config.items() if name != field})


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (MIXTRAL, {"num_experts": 8}, "num_local_experts and num_experts"),
        (QWEN3, {"num_local_experts": 4}, "num_local_"),
        (SWITCH, {"hidden_size": 32}, "hidden_size"),
        (PHI, {"original_max_position_embeddings": 16}, "original_max_position_embeddings is 16, and 256"),
    ],
)
def test_two_fields_that_mean_the_same_must_not_differ(
    config: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        family_of(config | changes)


def test_null_is_no_and_never_a_yes_by_default() -> None:
    family_of(DEEPSEEK_V3 | {"attention_bias": None})
    with pytest.raises(CheckpointError, match="rope_interleave is None"):
        family_of(DEEPSEEK_V3 | {"rope_interleave": None})


def test_a_dense_model_is_told_apart_from_an_unsupported_moe() -> None:
    with pytest.raises(UnsupportedModelError, match="'gpt2' is a family without experts"):
        family_of({"model_type": "gpt2"})
    with pytest.raises(UnsupportedModelError, match=r"'deepseek_v9' is a Mixture-of-E.*'deepseek_v3'.*docs/models\.md"):
        family_of({"model_type": "deepseek_v9", "n_routed_experts": 64})
    with pytest.raises(CheckpointError, match="no model_type"):
        family_of({})


@pytest.mark.parametrize(
    ("architecture", "needs"),
    [("LongcatCausalLM", ": LongCat-Flash with tables of n-grams"), ("SomeForCausalLM", "; docs")],
)
def test_a_config_without_a_type_is_told_by_its_architecture(architecture: str, needs: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"no model_type.*'{architecture}'.*does not run{needs}"):
        family_of({"architectures": [architecture], "n_routed_experts": 256})


def test_an_architecture_stands_for_the_type() -> None:
    """As LongCat-Flash-Lite was published, whose own code reads it."""
    untyped = {name: value for name, value in LONGCAT_NGRAM.items() if name != "model_type"}
    assert family_of(untyped | {"architectures": ["LongcatFlashNgramForCausalLM"]}).name == "longcat_flash_ngram"
    with pytest.raises(CheckpointError, match="hidden_size 64 is no multiple of the 6 tables"):
        family_of(LONGCAT_NGRAM | {"emb_split_num": 3})
    for name in ("ngram_exclude_sp_token", "ngram_fix_normalize_factor"):
        with pytest.raises(UnsupportedModelError, match=f"{name} = True"):
            family_of(LONGCAT_NGRAM | {name: True})
    with pytest.raises(CheckpointError, match="no multiple of the 0 tables"):
        family_of(LONGCAT_NGRAM | {"emb_neighbor_num": 1})


MOE_OF_OTHER_FAMILIES: dict[str, dict[str, Any]] = {
    "mllama": {"text_config": {"num_local_experts": 16}},
    "kimi_k9": {"text_config": {"n_routed_experts": 384}},
    "ernie5_moe": {"moe_num_experts": 64},
    "ernie5_moe_vl": {"moe_num_experts": [64, 64]},
    "dbrx_2": {"ffn_config": {"moe_num_experts": 16}},
    "diffusion_gemma": {"text_config": {"num_experts": 128, "enable_moe_block": True}},
    "skywork": {"num_experts": [16]},
    "deepseek_vl_v3": {"language_config": {"n_routed_experts": 64}},
    "grok_9": {"num_experts": 8},
    "another_omni_moe": {"thinker_config": {"text_config": {"num_experts": 128}}},
    "jetmoe": {"moe_num_experts": 8},
    "yuan": {"moe_config": {"moe_num_experts": 32}},
    "some": {"num_routed_experts": 8},
    "other": {"moe_expert_num": 8},
    "unlimited_ocr": {"text_config": {"n_routed_experts": 64}},
    "nested in a list": {"stages": [{"num_moe_experts": 4}]},
}
DENSE: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "deepseek_vl": {"n_routed_experts": None, "n_shared_experts": 2},
    "mamba": {"num_experts": 1},
    "opt": {"num_local_experts": 0, "num_experts_per_tok": 2, "num_selected_experts": 2},
    "phi": {"num_experts": True, "num_shared_experts": 4, "expert_capacity": 64},
}


@pytest.mark.parametrize("model_type", MOE_OF_OTHER_FAMILIES)
def test_a_moe_of_another_family_is_called_one_wherever_it_counts_its_experts(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'{model_type}' is a Mixture-of-Experts family that this v"):
        family_of({"model_type": model_type, **MOE_OF_OTHER_FAMILIES[model_type]})


@pytest.mark.parametrize("model_type", DENSE)
def test_a_dense_model_is_called_one_whatever_else_it_says_of_experts(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'{model_type}' is a family without experts"):
        family_of({"model_type": model_type, **DENSE[model_type]})


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (QWEN3, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; must be a whole number from 1 to 1000"),
        (QWEN3, {"num_hidden_layers": 20_000}, "num_hidden_layers"),
        (QWEN3, {"num_experts": 10**8}, "than the 100000"),
        (QWEN3, {"num_hidden_layers": 1000, "num_experts": 101}, "101 experts in each of 1000 layers"),
        (SWITCH, {"num_layers": 10**8}, "num_layers"),
        (SWITCH, {"num_decoder_layers": 10**8}, "num_decoder_layers"),
        (NLLB, {"encoder_layers": 10**8, "num_hidden_layers": 10**8}, "encoder_layers"),
        (NLLB, {"decoder_layers": 10**8}, "decoder_layers"),
        (GPT_OSS, {"num_local_experts": 1 << 30}, "more than the"),
        (DEEPSEEK_V3, {"num_nextn_predict_layers": 10**8}, "num_nextn_predict_layers"),
        (DEEPSEEK_V3, {"num_mtp_layers": 10**8}, "num_mtp_layers"),
        (DEEPSEEK_V3, {"qk_rope_head_dim": 2**31 - 2}, "positions rotate 2147483646 numbers"),
        (QWEN3, {"head_dim": 2**31 - 2}, "positions rotate 2147483646 numbers"),
        (QWEN3, {"rope_theta": 10**400}, "rope_theta"),
        (QWEN3, {"rms_norm_eps": 1e-300}, "rms_norm_eps"),
        (QWEN3, {"num_experts": int("9" * 4000)}, "num_experts is 9{100};"),
        (DEEPSEEK_V3, {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": 1e300}}, "mscale_all_dim"),
        (QWEN3_5, {"text_config": 0}, "text_config is 0; must be an object"),
        (QWEN3_5, {"text_config": []}, "text_config"),
        (QWEN3, {"mlp_only_layers": 0}, "mlp_only_layers is 0"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, str) else "",
)
def test_a_value_that_no_model_has_is_refused_in_little_memory(
    config: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=named) as caught:
            family_of(config | changes)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 300


def test_older_names_are_of_layer_types_alone() -> None:
    older = ["attention", "mamba", "deepseek_sparse_attention"]
    kinds = ("full_attention", "linear_attention", "indexed_attention")
    assert Fields({"layer_types": older}).kinds("layer_types", 3, *kinds) == kinds
    assert Fields({"layer_types": older}).kinds("layer_types", 3, *kinds, *older) == tuple(older)
    for name, value in (("mlp_layer_types", older), ("layer_types", [{}, *older[1:]])):
        with pytest.raises(UnsupportedModelError, match=name):
            Fields({name: value}).kinds(name, 3, *kinds)
