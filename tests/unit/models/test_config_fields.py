"""config.json is read strictly: every bad field is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models import architecture
from tests.models.configs.deepseek_v3 import DEEPSEEK_V3
from tests.models.configs.gpt_oss import GPT_OSS
from tests.models.configs.granitemoe import GRANITE
from tests.models.configs.mixtral import MIXTRAL
from tests.models.configs.olmoe import OLMOE
from tests.models.configs.phimoe import PHI
from tests.models.configs.qwen3_moe import QWEN3
from tests.models.configs.qwen3_next import NEXT
from tests.models.configs.switch_transformers import SWITCH

BAD_NUMBERS = [0, -1, 1.5, "8", True, [8], 1 << 40]


@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(("config", "field"), [
    (MIXTRAL, "hidden_size"), (MIXTRAL, "num_hidden_layers"), (MIXTRAL, "num_local_experts"),
    (MIXTRAL, "num_experts_per_tok"), (QWEN3, "head_dim"), (QWEN3, "moe_intermediate_size"),
    (OLMOE, "num_attention_heads"), (OLMOE, "vocab_size"), (OLMOE, "max_position_embeddings"),
])
def test_a_number_out_of_range_is_refused_by_name(config: dict[str, Any], field: str, bad: object) -> None:
    with pytest.raises(CheckpointError, match=field):
        architecture(config).tensor_plan(config | {field: bad})


@pytest.mark.parametrize("config", [MIXTRAL, QWEN3, OLMOE], ids=lambda config: config["model_type"])
@pytest.mark.parametrize(("field", "value"), [
    ("hidden_act", "gelu"), ("rope_scaling", {"type": "mrope"}), ("quantization_config", {"bits": 8}),
    ("rope_parameters", {"rope_type": "default", "mrope_section": [1, 1, 1]}),
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}),
])
def test_a_field_that_changes_the_maths_and_is_not_handled_is_refused_by_name(
    config: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        architecture(config).tensor_plan(config | {field: value})


@pytest.mark.parametrize(("config", "field", "value"), [
    (GPT_OSS, "swiglu_alpha", 1.5), (GPT_OSS, "layer_types", ["full_attention", "chunked_attention", "full_attention"]),
    (GPT_OSS, "quantization_config", {"quant_method": "awq"}), (GRANITE, "activation_function", "gelu"),
    (PHI, "num_experts_per_tok", 4), (MIXTRAL, "attention_bias", True),
    (MIXTRAL, "per_layer_config", {"1": {"intermediate_size": 32}}),
])
def test_a_field_of_one_family_that_is_not_handled_is_refused_by_name(config: dict[str, Any], field: str, value: object
                                                                      ) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        architecture(config).tensor_plan(config | {field: value})


@pytest.mark.parametrize("changes", [{"num_experts_per_tok": 9}, {"num_key_value_heads": 3}, {"head_dim": 7},
                                     {"decoder_sparse_step": 4}, {"mlp_only_layers": [0, 1, 2]}], ids=str)
def test_fields_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        architecture(QWEN3).tensor_plan(QWEN3 | changes)


@pytest.mark.parametrize("bad", [5, "1", [1.5], [True], {"0": 1}], ids=repr)
def test_a_list_of_layers_that_is_none_is_refused_by_name(bad: object) -> None:
    with pytest.raises(CheckpointError, match="mlp_only_layers"):
        architecture(QWEN3).tensor_plan(QWEN3 | {"mlp_only_layers": bad})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(CheckpointError, match="moe_intermediate_size is missing"):
        architecture(QWEN3).tensor_plan({k: v for k, v in QWEN3.items() if k != "moe_intermediate_size"})


@pytest.mark.parametrize(("config", "field"), [
    (MIXTRAL, "num_key_value_heads"), (GPT_OSS, "head_dim"), (NEXT, "head_dim"), (DEEPSEEK_V3, "q_lora_rank"),
    (DEEPSEEK_V3, "n_group"), (DEEPSEEK_V3, "topk_group"), (DEEPSEEK_V3, "n_shared_experts"),
    (DEEPSEEK_V3, "first_k_dense_replace"), (DEEPSEEK_V3, "routed_scaling_factor"), (SWITCH, "num_decoder_layers"),
])
def test_a_field_without_a_common_default_must_be_there(config: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError, match=f"{field} is missing"):
        architecture(config).tensor_plan({name: value for name, value in config.items() if name != field})


@pytest.mark.parametrize(("config", "changes", "named"), [
    (MIXTRAL, {"num_experts": 8}, "num_local_experts and num_experts"), (QWEN3, {"num_local_experts": 4}, "num_local_"),
    (SWITCH, {"hidden_size": 32}, "hidden_size"),
    (PHI, {"original_max_position_embeddings": 16}, "original_max_position_embeddings is 16, and 256"),
])
def test_two_fields_that_mean_the_same_must_not_differ(config: dict[str, Any], changes: dict[str, Any], named: str
                                                       ) -> None:
    with pytest.raises(CheckpointError, match=named):
        architecture(config).tensor_plan(config | changes)


def test_null_is_no_and_never_a_yes_by_default() -> None:
    architecture(DEEPSEEK_V3).tensor_plan(DEEPSEEK_V3 | {"attention_bias": None})
    with pytest.raises(CheckpointError, match="rope_interleave is None"):
        architecture(DEEPSEEK_V3).tensor_plan(DEEPSEEK_V3 | {"rope_interleave": None})


def test_a_dense_model_is_told_apart_from_an_unsupported_moe() -> None:
    with pytest.raises(UnsupportedModelError, match="llama is not a Mixture-of-Experts model"):
        architecture({"model_type": "llama"})
    with pytest.raises(UnsupportedModelError, match=r"'deepseek_v9' is not supported.*mixtral, olmoe, .*qwen3_moe"):
        architecture({"model_type": "deepseek_v9", "n_routed_experts": 64})
    with pytest.raises(CheckpointError, match="no model_type"):
        architecture({})
