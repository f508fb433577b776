"""Kimi K3: the names and shapes of the published checkpoint, and what its fields mean otherwise."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensor_names import plan_name
from tests.support.configs.kimi_k3 import KIMI_K3

PUBLISHED = Path(__file__).parents[2] / "support" / "published" / "kimi-k3" / "config.json"
# As public programs quote the headers of the published files; those of latent attention are as vLLM takes them.
OF_ALL = {
    "input_layernorm.weight": (7168,),
    "post_attention_layernorm.weight": (7168,),
    "self_attention_res_norm.weight": (7168,),
    "self_attention_res_proj.weight": (1, 7168),
    "mlp_res_norm.weight": (7168,),
    "mlp_res_proj.weight": (1, 7168),
    "block_sparse_moe.gate.weight": (896, 7168),
    "block_sparse_moe.gate.e_score_correction_bias": (896,),
    "block_sparse_moe.routed_expert_down_proj.weight": (3584, 7168),
    "block_sparse_moe.routed_expert_norm.weight": (3584,),
    "block_sparse_moe.routed_expert_up_proj.weight": (7168, 3584),
    "block_sparse_moe.shared_experts.gate_proj.weight": (6144, 7168),
    "block_sparse_moe.shared_experts.up_proj.weight": (6144, 7168),
    "block_sparse_moe.shared_experts.down_proj.weight": (7168, 6144),
}
OF_KDA = {
    "self_attn.A_log": (128,),
    "self_attn.b_proj.weight": (96, 7168),
    "self_attn.dt_bias": (12288,),
    "self_attn.f_a_proj.weight": (128, 7168),
    "self_attn.f_b_proj.weight": (12288, 128),
    **{f"self_attn.{name}_proj.weight": (12288, 7168) for name in "gkqv"},
    **{f"self_attn.{name}_conv1d.weight": (12288, 1, 4) for name in "kqv"},
    "self_attn.o_norm.weight": (128,),
    "self_attn.o_proj.weight": (7168, 12288),
}
OF_LATENT = {
    "self_attn.q_a_proj.weight": (1536, 7168),
    "self_attn.q_a_layernorm.weight": (1536,),
    "self_attn.q_b_proj.weight": (18432, 1536),
    "self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
    "self_attn.kv_a_layernorm.weight": (512,),
    "self_attn.kv_b_proj.weight": (24576, 512),
    "self_attn.g_proj.weight": (12288, 7168),
    "self_attn.o_proj.weight": (7168, 12288),
}
EXPERT = {"w1": (3072, 3584), "w2": (3584, 3072), "w3": (3072, 3584)}


def changed(**fields: Any) -> dict[str, Any]:
    config = copy.deepcopy(KIMI_K3)
    inner = config["text_config"]["linear_attn_config"]
    for name, value in fields.items():
        (inner if name in inner else config["text_config"])[name] = value
    return config


@pytest.mark.parametrize(("layer", "attention"), [(12, OF_KDA), (92, OF_LATENT)])
def test_the_plan_has_the_tensors_of_the_published_files(layer: int, attention: dict[str, tuple[int, ...]]) -> None:
    plan = family_of(json.loads(PUBLISHED.read_text())).tensors
    prefix = f"language_model.model.layers.{layer}."
    wanted = {plan_name(prefix + name, plan): shape for name, shape in (OF_ALL | attention).items()}
    assert {name: shape for name, shape in plan.dense.items() if name.startswith(prefix)} == wanted
    experts = {
        plan_name(f"{prefix}block_sparse_moe.experts.895.{name}.weight", plan): each for name, each in EXPERT.items()
    }
    assert {name: shape for name, (shape, _) in plan.experts[0].items() if name in experts} == experts


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"activation_situ_beta": None}, "activation_situ_beta"),
        ({"activation_situ_beta": 0}, "activation_situ_beta"),
        ({"activation_situ_linear_beta": -1.0}, "activation_situ_linear_beta"),
        ({"gate_lower_bound": 5.0}, "gate_lower_bound"),
        ({"gate_lower_bound": True}, "gate_lower_bound"),
        ({"use_full_rank_gate": "yes"}, "use_full_rank_gate"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"attn_res_block_size": -1}, "attn_res_block_size"),
        ({"routed_expert_hidden_size": 0}, "routed_expert_hidden_size"),
    ],
    ids=lambda value: " ".join(f"{name} {each}" for name, each in value.items()) if isinstance(value, dict) else "",
)
def test_what_a_field_means_otherwise_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    family_of(KIMI_K3)
    with pytest.raises(CheckpointError, match=words):
        family_of(changed(**fields))


@pytest.mark.parametrize(
    "name",
    [
        *("attn_res_block_size", "routed_expert_hidden_size", "latent_moe_use_norm", "mla_use_output_gate"),
        *("activation_situ_beta", "activation_situ_linear_beta", "gate_lower_bound", "use_full_rank_gate"),
    ],
)
def test_a_field_that_readers_differ_about_must_be_there(name: str) -> None:
    config = copy.deepcopy(KIMI_K3)
    inner = config["text_config"]["linear_attn_config"]
    del (inner if name in inner else config["text_config"])[name]
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        family_of(config)
