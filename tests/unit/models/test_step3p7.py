"""Step 3.5 and 3.7 as published: fields by other names, and lists that go on behind the last layer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily
from tests.support.configs.step3p7 import LLAMA3, STEP

_SAID = STEP["text_config"]
_ELSEWHERE = (
    *("num_key_value_heads", "n_routed_experts", "num_experts_per_tok", "max_position_embeddings"),
    *("mlp_layer_types", "num_sliding_attention_heads", "rope_parameters"),
)
_ROPES = _SAID["rope_parameters"]
SAVED = STEP | {
    "text_config": _SAID | {"rope_parameters": _ROPES | {"full_attention": _ROPES["full_attention"] | LLAMA3}}
}
PUBLISHED: dict[str, Any] = {name: value for name, value in _SAID.items() if name not in _ELSEWHERE} | {
    "model_type": "step3p5",
    "num_attention_groups": 2,
    "moe_num_experts": 8,
    "moe_top_k": 3,
    "max_seq_len": _SAID["max_position_embeddings"],
    "moe_layers_enum": "1,2,3",
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 6,
        "num_attention_groups": 2,
        "head_dim": 16,
    },
    "layer_types": [*_SAID["layer_types"], "sliding_attention"],
    "swiglu_limits": [*_SAID["swiglu_limits"], 0.0],
    "swiglu_limits_shared": [*_SAID["swiglu_limits_shared"], 0.0],
    "rope_theta": [1000.0, 100.0, 100.0, 100.0],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
    "rope_scaling": LLAMA3,
    "yarn_only_types": ["full_attention"],
    "num_nextn_predict_layers": 1,
}


def test_a_published_config_means_what_transformers_saves() -> None:
    published, saved = family_of(copy.deepcopy(PUBLISHED)), family_of(copy.deepcopy(SAVED))
    assert isinstance(published, DecoderFamily) and isinstance(saved, DecoderFamily)
    assert repr(published.decoder) == repr(saved.decoder)
    assert (published.spec.blocks.moe, published.tensors.dense) == (saved.spec.blocks.moe, saved.tensors.dense)
    assert published.tensors.forms == saved.tensors.forms
    assert [form.limit for form in published.tensors.forms] == [0.0, 0.3]
    assert "model.layers.1.moe.gate_proj.weight" in published.tensors.experts[0]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("moe_num_experts", {"n_routed_experts": 4}, "they mean the same"),
        ("rope_theta", {"rope_theta": [1000.0, 100.0, 50.0, 100.0]}, "rope_theta"),
        ("swiglu_limits_shared", {"swiglu_limits_shared": [1.0, 0.0, 0.0]}, "without experts"),
        ("moe_layers_enum", {"moe_layers_enum": "one"}, "moe_layers_enum"),
        ("attention_other_setting", {"attention_other_setting": {"head_dim": 8}}, "head_dim"),
        ("sink", {"sink": True}, "sink"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(field: str, value: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said) as refused:
        family_of(copy.deepcopy(PUBLISHED) | value)
    assert field in str(refused.value)
