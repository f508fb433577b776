"""What the families of Qwen and Arctic refuse of a config.json, and what they leave out of a checkpoint."""

from __future__ import annotations

import re
from typing import Any

import pytest

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from tests.support.configs.arctic import ARCTIC
from tests.support.configs.qwen2_moe import QWEN2
from tests.support.configs.qwen3_5_moe import QWEN3_5
from tests.support.configs.qwen3_next import NEXT


@pytest.mark.parametrize(
    ("config", "changed", "named"),
    [
        (QWEN2, {"layer_types": ["sliding_attention"] * 3}, "sliding_attention"),
        (QWEN2, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_attention"),
        (QWEN2, {"layer_types": ["full_attention"]}, "layer_types"),
        (QWEN2, {"attention_bias": True}, "attention_bias"),
        (NEXT, {"linear_num_key_heads": 4}, "linear_num_key_heads"),
        (NEXT, {"layer_types": ["linear_attention"] * 3 + ["sliding_attention"]}, "sliding_attention"),
        (NEXT, {"use_sliding_window": True}, "use_sliding_window"),
        (NEXT, {"decoder_sparse_step": 9}, "decoder_sparse_step"),
        (QWEN3_5, {"text_config": QWEN3_5["text_config"] | {"attn_output_gate": False}}, "attn_output_gate"),
        (QWEN3_5, {"text_config": QWEN3_5["text_config"] | {"mlp_only_layers": [1]}}, "mlp_only_layers"),
        (QWEN3_5, {"text_config": [1]}, "text_config"),
        (QWEN3_5, {"text_config": QWEN3_5["text_config"] | {"tie_word_embeddings": "no"}}, "tie_word_embeddings"),
        (QWEN3_5, {"quantization_config": {"quant_method": "aqlm"}}, "quant_method"),
        (ARCTIC, {"use_residual": False}, "use_residual"),
        (ARCTIC, {"moe_layer_frequency": 9}, "moe_layer_frequency"),
        (ARCTIC, {"quantization": {"q_bits": 8}}, "quantization"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], changed: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        family_of(config | changed)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (NEXT, "mtp.layers.0.mlp.experts.7.gate_proj.weight"),
        (QWEN3_5, "mtp.layers.0.mlp.experts.gate_up_proj"),
        (QWEN3_5, "mtp.fc.weight"),
    ],
)
def test_tensors_that_predict_further_tokens_are_kept_beside_the_model(config: dict[str, Any], name: str) -> None:
    plan = family_of(config).tensors
    assert any(re.fullmatch(pattern, name) for pattern in plan.ahead)
    assert not any(re.fullmatch(pattern, name) for pattern in plan.ignored)


def test_tensors_beside_the_language_model_are_left_out() -> None:
    ignored = family_of(QWEN3_5).tensors.ignored
    assert any(re.fullmatch(pattern, "model.visual.blocks.0.attn.qkv.weight") for pattern in ignored)


def test_only_matrices_of_products_may_be_quantised() -> None:
    matrices = {name.split(".layers.")[-1] for name in family_of(NEXT).tensors.matrices}
    linear = {name.removeprefix("0.linear_attn.") for name in matrices if name.startswith("0.linear_attn.")}
    assert linear == {"in_proj_qkvz.weight", "out_proj.weight"}, "rates, decays and the convolution stay exact"
    assert "0.mlp.shared_expert_gate.weight" not in matrices
