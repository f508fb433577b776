"""What llama.cpp's converter makes of families with recurrent layers and of Ling: names, orders and metadata.

Part of gguf_files.py, which the record of the converter holds it to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

ARCHITECTURES = {
    "granitemoehybrid": "granitehybrid",
    "nemotron_h": "nemotron_h_moe",
    "lfm2_moe": "lfm2moe",
    "jamba": "jamba",
    "bailing_moe": "bailingmoe",
}
NAMES = (  # of the configs that are recorded
    "granitemoehybrid",
    "nemotron_h",
    "nemotron_h narrow experts, groups, halves alone",
    "lfm2_moe",
    "jamba",
    "bailing_moe",
    "bailing_moe second generation",
)
Config = Mapping[str, Any]


def as_published(config: dict[str, Any]) -> dict[str, Any]:
    """With the kinds of layers as published configs name them, which are all that the converter knows."""
    old = {"linear_attention": "mamba", "full_attention": "attention"}
    letters = {"linear_attention": "M", "full_attention": "*", "moe": "E", "mlp": "-"}
    if config["model_type"] == "granitemoehybrid":
        return config | {"layer_types": [old[kind] for kind in config["layer_types"]]}
    if config["model_type"] == "nemotron_h":
        kinds = config["layers_block_type"]
        pattern = "".join(letters[kind] for kind in kinds)
        eps = config["layer_norm_epsilon"]
        return config | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(kinds), "norm_eps": eps}
    return config


def num_layers(c: Config) -> int:
    count: int = len(c["layers_block_type"]) if "layers_block_type" in c else c["num_hidden_layers"]
    return count


def metadata(model_type: str, c: Config) -> dict[str, Any]:
    found = {
        "granitemoehybrid": _granite,
        "nemotron_h": _nemotron,
        "lfm2_moe": _lfm2,
        "jamba": _jamba,
        "bailing_moe": _bailing,
    }[model_type](c)
    return found if model_type == "jamba" else found | {"vocab_size": c["vocab_size"]}


def _heads(c: Config, attends: list[bool]) -> dict[str, Any]:
    return {"attention.head_count_kv": [c["num_key_value_heads"] if each else 0 for each in attends]}


def _granite(c: Config) -> dict[str, Any]:
    return {
        **_heads(c, [kind == "full_attention" for kind in c["layer_types"]]),
        "attention.scale": float(c["attention_multiplier"]),
        "embedding_scale": float(c["embedding_multiplier"]),
        "residual_scale": float(c["residual_multiplier"]),
        "logit_scale": float(c["logits_scaling"]),
        "expert_shared_feed_forward_length": c["shared_intermediate_size"],
        "rope.dimension_count": c["hidden_size"] // c["num_attention_heads"],
        "rope.scaling.finetuned": False,  # whatever position_embedding_type says
        "ssm.conv_kernel": c["mamba_d_conv"],
        "ssm.state_size": c["mamba_d_state"],
        "ssm.group_count": c["mamba_n_groups"],
        "ssm.inner_size": c["mamba_expand"] * c["hidden_size"],
        "ssm.time_step_rank": c["mamba_n_heads"],
        "context_length": 1 << 20,
    }


def _nemotron(c: Config) -> dict[str, Any]:
    kinds = c["layers_block_type"]
    return {
        **_heads(c, [kind == "full_attention" for kind in kinds]),
        "attention.layer_norm_rms_epsilon": c["layer_norm_epsilon"],
        "attention.layer_norm_epsilon": c["layer_norm_epsilon"],
        "context_length": 1 << 20,
        "feed_forward_length": [c["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"],
        "expert_shared_count": 1,
        "expert_weights_norm": c["norm_topk_prob"],
        "expert_weights_scale": float(c["routed_scaling_factor"]),
        "expert_group_count": c["n_group"],
        "expert_group_used_count": c["topk_group"],
        "rope.dimension_count": c["head_dim"],
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": c["conv_kernel"],
        "ssm.state_size": c["ssm_state_size"],
        "ssm.group_count": c["n_groups"],
        "ssm.inner_size": c["mamba_num_heads"] * c["mamba_head_dim"],
        "ssm.time_step_rank": c["mamba_num_heads"],
        **({"moe_latent_size": c["moe_latent_size"]} if "moe_latent_size" in c else {}),
    }


def _lfm2(c: Config) -> dict[str, Any]:
    return {
        **_heads(c, [kind == "full_attention" for kind in c["layer_types"]]),
        "attention.layer_norm_rms_epsilon": c.get("norm_eps", 1e-5),
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "leading_dense_block_count": c["num_dense_layers"],
        "expert_gating_func": 2,
        "shortconv.l_cache": c["conv_L_cache"],
    }


def _jamba(c: Config) -> dict[str, Any]:
    layers = range(c["num_hidden_layers"])
    return {
        **_heads(c, [i % c["attn_layer_period"] == c["attn_layer_offset"] for i in layers]),
        "ssm.conv_kernel": c["mamba_d_conv"],
        "ssm.inner_size": c["mamba_expand"] * c["hidden_size"],
        "ssm.state_size": c["mamba_d_state"],
        "ssm.time_step_rank": c["mamba_dt_rank"],
        "rope.freq_base": None,
    }


def _bailing(c: Config) -> dict[str, Any]:
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    found = {
        "rope.dimension_count": int(head_dim * c.get("partial_rotary_factor", 1.0)),
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_weights_scale": float(c.get("routed_scaling_factor", 1.0)),
        "expert_shared_count": c["num_shared_experts"],
        "expert_weights_norm": c["norm_topk_prob"],
    }
    if "score_function" not in c:
        return found
    return found | {
        "expert_shared_feed_forward_length": c["moe_intermediate_size"] * c["num_shared_experts"],
        "expert_group_count": c["n_group"],
        "expert_group_used_count": c["topk_group"],
        "expert_gating_func": 2,
        "nextn_predict_layers": c["num_nextn_predict_layers"],
    }


def _turned(tensor: Tensor, heads: int) -> Tensor:
    """The two halves of each head between each other."""
    halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, -1)
    return halves.transpose(1, 2).reshape(tensor.shape)


def changed(model_type: str, c: Config, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What the converter does before it asks for a tensor's name."""
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    if name.endswith(("A_log", ".D")):
        tensor = -torch.exp(tensor) if name.endswith("A_log") else tensor
        yield name, tensor.reshape(-1, 1) if tensor.dim() == 1 and model_type != "jamba" else tensor
    elif re.search(r"(conv1d|conv\.conv)\.weight", name):
        yield name, tensor.squeeze(1)
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt.bias" if model_type == "nemotron_h" else "dt_proj.bias"), tensor
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        groups = c["mamba_n_groups" if model_type == "granitemoehybrid" else "n_groups"]
        yield name, tensor.view(groups, -1)
    elif re.search(r"\.[qk]_proj\.", name) and model_type in ("granitemoehybrid", "nemotron_h"):
        yield name, _turned(tensor, heads if ".q_proj." in name else kv_heads)
    elif name.endswith("_linear.weight"):
        yield from _granite_parts(name, tensor)
    elif name.endswith(("expert_bias", "e_score_correction_bias")):
        yield name.replace("correction_bias", "correction.bias").replace("expert_bias", "expert_bias.bias"), tensor
    elif "query_key_value" in name and "score_function" not in c:
        size = tensor.shape[0] // (heads + 2 * kv_heads)
        q, k, v = tensor.split([heads * size, kv_heads * size, kv_heads * size])
        layer = name.split(".attention.")[0]
        yield f"{layer}.self_attn.q_proj.weight", _turned(q, heads)
        yield f"{layer}.self_attn.k_proj.weight", _turned(k, kv_heads)
        yield f"{layer}.self_attn.v_proj.weight", v
    else:
        name = re.sub(r"^model\.(layers\.\d+\.feed_forward\.experts\.w)", r"\1", name)
        name = re.sub(r"(?:feed_forward|mixer)\.experts\.(\w+_proj)", r"mlp.experts.\1", name)
        yield name.replace("backbone.layers", "model.layers") if ".mlp." in name else name, tensor


def _granite_parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Gate and up in one, of experts and of the shared MLP."""
    if "shared_mlp" in name:
        shared = name.split("shared_mlp")[0] + "mlp.shared_expert."
        if "output" in name:
            yield f"{shared}down_proj.weight", tensor
        else:
            gate, up = tensor.chunk(2)
            yield f"{shared}gate_proj.weight", gate
            yield f"{shared}up_proj.weight", up
    elif "output" in name:
        yield name.replace("output_linear", "experts.w2"), tensor
    else:
        gate, up = tensor.chunk(2, 1)
        yield name.replace("input_linear", "experts.w1"), gate.contiguous()
        yield name.replace("input_linear", "experts.w3"), up.contiguous()
