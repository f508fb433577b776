"""A GGUF file of Kimi K3, with the names and metadata that llama.cpp's converter writes (conversion/kimi_k3.py).

The converter of the record knows none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor

from tests.support.checkpoints import random_tensors
from tests.support.configs.kimi_k3 import KIMI_K3

NAMES = {  # of a layer, where nothing but the name is changed
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{f"self_attn.{name}_proj.weight": f"attn_{name}.weight" for name in "qkv"},
    **{f"self_attn.{name}_proj.weight": f"ssm_{name}.weight" for name in ("f_a", "f_b", "g_a", "g_b")},
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    **{f"self_attn.{name}_proj.weight": f"attn_{name}.weight" for name in ("q_a", "q_b")},
    **{f"self_attn.{name}_layernorm.weight": f"attn_{name}_norm.weight" for name in ("q_a", "kv_a")},
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    **{f"mlp.{name}_proj.weight": f"ffn_{name}.weight" for name in ("gate", "up", "down")},
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"block_sparse_moe.routed_expert_{name}_proj.weight": f"ffn_routed_{name}.weight" for name in ("down", "up")},
    "block_sparse_moe.routed_expert_norm.weight": "ffn_routed_norm.weight",
    **{
        f"block_sparse_moe.shared_experts.{name}_proj.weight": f"ffn_{name}_shexp.weight"
        for name in ("gate", "up", "down")
    },
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
FUSED = {"self_attention_res": "attn_res_score", "mlp_res": "ffn_res_score", "output_attn_res": "output_res_score"}
PARTS = {"w1": "gate", "w2": "down", "w3": "up"}


def published_k3(config: Mapping[str, Any] = KIMI_K3) -> dict[str, Tensor]:
    """Random tensors under the names of the published checkpoint, small ones, and decays filled up with zeros."""
    heads, found = config["text_config"]["linear_attn_config"]["num_heads"], dict[str, Tensor]()
    for name, tensor in random_tensors(config).items():
        found[name] = tensor.float() * 0.2
        if name.endswith("A_log"):
            found[name][heads:] = 0
    return {published_name(name, found): tensor for name, tensor in found.items()}


def published_name(name: str, tensors: Mapping[str, Tensor]) -> str:
    """Blocks of experts have another name than dense ones."""
    block = re.match(r"(.*\.)mlp\.", name)
    is_sparse = block is not None and f"{block[1]}mlp.gate.weight" in tensors
    return name.replace(".mlp.", ".block_sparse_moe.") if is_sparse else name


def metadata(text: Mapping[str, Any]) -> dict[str, Any]:
    linear = text["linear_attn_config"]
    full = [i + 1 in linear["full_attn_layers"] for i in range(text["num_hidden_layers"])]
    found = {
        "block_count": text["num_hidden_layers"],
        "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"],
        "feed_forward_length": text["intermediate_size"],
        "vocab_size": text["vocab_size"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": [int(each) for each in full],
        "attention.layer_norm_rms_epsilon": text["rms_norm_eps"],
        "attention.q_lora_rank": text["q_lora_rank"],
        "attention.kv_lora_rank": text["kv_lora_rank"],
        "attention.key_length": text["kv_lora_rank"] + text["qk_rope_head_dim"],
        "attention.value_length": text["kv_lora_rank"],
        "attention.key_length_mla": text["qk_nope_head_dim"] + text["qk_rope_head_dim"],
        "attention.value_length_mla": text["v_head_dim"],
        "rope.dimension_count": text["qk_rope_head_dim"],
        "ssm.conv_kernel": linear["short_conv_kernel_size"],
        "kda.head_dim": linear["head_dim"],
        "kda.gate_lower_bound": linear["gate_lower_bound"],
        "expert_count": text["num_experts"],
        "expert_used_count": text["num_experts_per_token"],
        "expert_group_count": text["num_expert_group"],
        "expert_group_used_count": text["topk_group"],
        "expert_feed_forward_length": text["moe_intermediate_size"],
        "expert_shared_count": text["num_shared_experts"],
        "expert_latent_length": text["routed_expert_hidden_size"],
        "expert_weights_scale": text["routed_scaling_factor"],
        "expert_weights_norm": text["moe_renormalize"],
        "expert_gating_func": 2,
        "leading_dense_block_count": text["first_k_dense_replace"],
        "activation.situ_beta": text["activation_situ_beta"],
        "activation.situ_linear_beta": text["activation_situ_linear_beta"] or 0.0,
        "attn_res.block_size": text["attn_res_block_size"],
    }
    return {name: value for name, value in found.items() if value is not None}


def converted(text: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a checkpoint, as they are called and changed."""
    linear, heads = text["linear_attn_config"], text["num_attention_heads"]
    experts = dict[str, list[np.ndarray]]()
    for whole, tensor in tensors.items():
        name, values = whole.removeprefix("language_model."), tensor.float().numpy()
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if (of_score := re.fullmatch(r"(.*?)(\w+_res)_norm\.weight", name)) is not None:
            scores = values * tensors[whole.replace("_norm", "_proj")].float().numpy().reshape(-1)
            layer = f"blk.{found[1]}." if found else ""
            yield f"{layer}{FUSED[of_score[2]]}.weight", scores
        elif name.endswith("_res_proj.weight"):
            continue
        elif found is None:
            yield OUTER[name], values
        elif (expert := re.fullmatch(r"block_sparse_moe\.experts\.\d+\.(w\d)\.weight", found[2])) is not None:
            experts.setdefault(f"blk.{found[1]}.ffn_{PARTS[expert[1]]}_exps.weight", []).append(values)
        else:
            for own, numbers in _of_layer(
                found[2], values, text, heads, int(found[1]) + 1 in linear["full_attn_layers"]
            ):
                yield f"blk.{found[1]}.{own}", numbers
    yield from ((name, np.stack(each)) for name, each in experts.items())


def _of_layer(
    name: str, values: np.ndarray, text: Mapping[str, Any], heads: int, is_full: bool
) -> Iterator[tuple[str, np.ndarray]]:
    if (conv := re.fullmatch(r"self_attn\.([qkv])_conv1d\.weight", name)) is not None:
        yield f"ssm_conv1d_{conv[1]}.weight", values.reshape(1, len(values), 1, -1)
    elif name == "self_attn.A_log":
        yield "ssm_a", -np.exp(values[:heads])
    elif name == "self_attn.g_proj.weight":
        yield ("attn_gate.weight" if is_full else "ssm_g.weight"), values
    elif name == "self_attn.kv_b_proj.weight":
        both = values.reshape(heads, -1, values.shape[-1])
        yield "attn_k_b.weight", np.ascontiguousarray(both[:, : text["qk_nope_head_dim"]].transpose(0, 2, 1))
        yield "attn_v_b.weight", np.ascontiguousarray(both[:, text["qk_nope_head_dim"] :])
    else:
        yield NAMES[name], values


def write_kimi_k3(
    path: Path,
    tensors: Mapping[str, Tensor],
    changed: Mapping[str, Any],
    config: Mapping[str, Any] = KIMI_K3,
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """In f32. changed: metadata, None to leave one out; more: further tensors."""
    writer, text, kind = gguf.GGUFWriter(path, "kimi-k3"), config["text_config"], gguf.GGUFValueType
    for name, value in (metadata(text) | dict(changed)).items():
        if isinstance(value, list):
            writer.add_key_value(f"kimi-k3.{name}", value, kind.ARRAY, sub_type=kind.INT32)
        elif value is not None:
            by_type = {bool: kind.BOOL, int: kind.UINT32, float: kind.FLOAT32}
            writer.add_key_value(f"kimi-k3.{name}", value, by_type[type(value)])
    for name, numbers in [*converted(text, tensors), *(more or {}).items()]:
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
