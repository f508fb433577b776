"""Configs and names of tensors as published checkpoints have them, which are all that the converter knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from moeinf.models.family import family_of
from moeinf.models.layers.streams.ngrams import NgramConfig

ARCHITECTURES = {  # of families whose files are written with the metadata of the record
    "afmoe": "afmoe",
    "bailing_hybrid": "bailingmoe3",
    "cohere2_moe": "cohere2moe",
    "dbrx": "dbrx",
    "deepseek_v32": "deepseek32",
    "deepseek_v4": "deepseek4",
    "glm4_moe_lite": "deepseek2",
    "glm5_next": "glm5-next",
    "glm_moe_dsa": "glm-dsa",
    "granitemoe_swa": "granite_swa",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_moe": "hunyuan-moe",
    "hy_v3": "hy_v3",
    "hy_v4": "hy_v4",
    "kimi_linear": "kimi-linear",
    "laguna": "laguna",
    "llama4": "llama4",
    "mellum": "mellum",
    "mimo_v2_flash": "mimo2",
    "minimax_m3_vl": "minimax-m3",
    "mistral4": "mistral4",
    "qwen4_exp": "qwen4exp",
    "solar_open": "glm4moe",
    "step3p7": "step35",
    "smallthinker": "smallthinker",
    "deepseek": "deepseek",
    "maple": "maple",
    "deepseek_ocr2": "deepseek2-ocr",
    "minimax": "minimax-01",
    "minicpm": "minicpm",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "granite": "granite",
    "glm": "chatglm",
    "glm4": "glm4",
    "ernie4_5": "ernie4_5",
    "smollm3": "smollm3",
    "olmo2": "olmo2",
    "starcoder2": "starcoder2",
}


def as_published(config: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "bailing_hybrid": _ling,
        "deepseek_ocr2": _deepseek_ocr,
        "minimax": _minimax_01,
        "dbrx": lambda c: c | {"model_type": "databricks", "max_seq_len": c["max_position_embeddings"]},  # as of MiMo
        "deepseek_v4": _deepseek4,
        "glm5_next": _glm5,
        "hunyuan_v1_moe": _hunyuan,
        "hy_v4": lambda c: c | {"model_type": "hy4", "first_k_dense_replace": 1, "norm_topk_prob": True},  # as of MiMo
        "kimi_linear": lambda c: c | {"moe_router_activation_func": "sigmoid"},
        "mimo_v2_flash": _mimo,
        "minimax_m3_vl": _minimax,
        "qwen4_exp": lambda c: c | {"model_type": "qwen4"},  # as of MiMo
        "solar_open": lambda c: c | {"partial_rotary_factor": 1.0},
        "step3p7": _step,
    }
    return own.get(config["model_type"], dict)(config)


def _deepseek_ocr(c: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = c["text_config"]
    dense = text["mlp_layer_types"].count("dense")
    return text | {"model_type": "deepseek_ocr", "first_k_dense_replace": dense, "qk_rope_head_dim": 0}  # as of MiMo


def _minimax_01(c: dict[str, Any]) -> dict[str, Any]:
    kinds = ("full_attention", "linear_attention", "mlp")
    scales = {f"layernorm_{kind}_alpha": c["full_attn_alpha_factor"] for kind in kinds}
    ones = {f"layernorm_{kind}_beta": 1.0 for kind in kinds}
    return (
        c | scales | ones | {"model_type": "minimax_text_01", "rotary_dim": c["head_dim"], "rms_norm_eps": 1e-5}
    )  # as of MiMo


def _deepseek4(c: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in c.items() if name not in ("layer_types", "mlp_layer_types")}
    return kept | {
        "model_type": "deepseek4",  # as of MiMo
        "qk_rope_head_dim": int(c["head_dim"] * c["partial_rotary_factor"]),
        "compress_ratios": [c["compress_rates"].get(kind, 0) for kind in c["layer_types"]],
        "num_hash_layers": c["mlp_layer_types"].count("hash_moe"),
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
    }


def _glm5(c: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = c["text_config"]
    return text | {
        "model_type": "glm5",  # as of MiMo
        "architectures": ["Glm5NextForConditionalGeneration"],
        "mla_use_nope": True,
        "first_k_dense_replace": text["mlp_layer_types"].count("dense"),
        "norm_topk_prob": True,
        "linear_attn_config": {
            "num_heads": text["linear_num_heads"],
            "head_dim": text["linear_head_dim"],
            "short_conv_kernel_size": text["linear_conv_kernel_dim"],
            "gate_lower_bound": text["linear_lower_bound"],
        },
    }


def _hunyuan(c: dict[str, Any]) -> dict[str, Any]:
    layers = c["num_hidden_layers"]
    listed = {"moe_intermediate_size": c["intermediate_size"], "moe_topk": c["moe_topk"], "num_shared_expert": 1}
    return c | {name: [value] * layers for name, value in listed.items()}


def _ling(c: dict[str, Any]) -> dict[str, Any]:
    return c | {
        "model_type": "bailing_moe_v3",  # as of MiMo
        "no_kda_lora": True,
        "kda_safe_gate": True,
        "kda_lower_bound": -5.0,
        "short_conv_kernel_size": 4,
        "gated_attention_proj_granularity_type": "head_wise",
        "moe_shared_expert_intermediate_size": c["moe_intermediate_size"],
        "score_function": "sigmoid",
    }


def _mimo(c: dict[str, Any]) -> dict[str, Any]:
    return c | {
        "model_type": "mimo_v2",  # which transformers does not know: it would put fields in other places
        "rope_theta": 5e6,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.334,
        "layernorm_epsilon": 1e-5,
        "attention_value_scale": c.get("attention_value_scale", 0.707),
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in c["layer_types"]],
        "swa_num_attention_heads": c["num_attention_heads"],
        "swa_num_key_value_heads": 2 * c["num_key_value_heads"],
        "swa_head_dim": c["head_dim"],
        "swa_v_head_dim": c["v_head_dim"],
    }


def _minimax(c: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = c["text_config"]
    return text | {
        "model_type": "minimax_m3",  # as of MiMo
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "n_shared_experts": 1,
        "rope_theta": text["rope_parameters"]["rope_theta"],
        "moe_layer_freq": [int(kind == "sparse") for kind in text["mlp_layer_types"]],
        "sparse_attention_config": {
            "sparse_num_index_heads": text["index_n_heads"],
            "sparse_index_dim": text["index_head_dim"],
            "sparse_block_size": text["index_block_size"],
            "sparse_topk_blocks": text["index_topk_blocks"],
            "sparse_local_block": text.get("index_local_blocks", 1),
        },
    }


def _step(c: dict[str, Any]) -> dict[str, Any]:
    t = c["text_config"]
    slides = [kind == "sliding_attention" for kind in t["layer_types"]]
    ropes = [t["rope_parameters"][kind] for kind in t["layer_types"]]
    text = {name: value for name, value in t.items() if name not in ("rope_parameters", "mlp_layer_types")}
    return text | {
        "model_type": "step3",  # as of MiMo
        "num_attention_groups": t["num_key_value_heads"],
        "moe_num_experts": t["n_routed_experts"],
        "moe_top_k": t["num_experts_per_tok"],
        "moe_layers_enum": ",".join(str(i) for i, kind in enumerate(t["mlp_layer_types"]) if kind == "sparse"),
        "attention_other_setting": {"num_attention_heads": t["num_sliding_attention_heads"]},
        "rope_theta": [each["rope_theta"] for each in ropes],
        "rope_scaling": {
            name: value for name, value in ropes[0].items() if name not in ("rope_theta", "partial_rotary_factor")
        },
        "partial_rotary_factors": [1.0 if each else 0.5 for each in slides],
        "norm_expert_weight": True,
    }


def published_name(config: dict[str, Any], name: str) -> str:
    """Of a tensor, of which the plan has another name."""
    if config["model_type"] == "kimi_linear":
        return re.sub(r"\.mlp\.(gate|experts|shared_experts)\.", r".block_sparse_moe.\1.", name)
    return name


def published(config: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, as it is published."""
    found = {published_name(config, name): tensor for name, tensor in {**tensors, **hashes(config)}.items()}
    if config["model_type"] != "deepseek_v4":
        return found
    from gguf import GGMLQuantizationType, quants  # the converter's own, where it is recorded

    for name in [name for name in found if re.search(r"hc_\w+$|\.ape$|sink$", name)]:
        found[name] = found[name].float()
    for name in [name for name in found if ".ffn.experts." in name]:
        blocks = quants.quantize(found[name].float().numpy(), GGMLQuantizationType.MXFP4).reshape(
            len(found[name]), -1, 17
        )
        codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1)
        pairs = codes[..., ::2] | codes[..., 1::2] << 4
        found[name] = torch.from_numpy(pairs.reshape(len(pairs), -1)).view(torch.int8)
        scales = torch.from_numpy(blocks[..., 0].copy())
        found[name.removesuffix("weight") + "scale"] = scales.view(torch.float8_e8m0fnu)
    return found | {"head.weight": found.pop("lm_head.weight")}


def fp4(tensor: torch.Tensor) -> torch.Tensor:
    """Of multiples of 1/128 the eighths of numbers that FP4 has."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 6])
    return (values[((tensor + 1) * 8).long().clamp(max=15)] / 8).to(torch.bfloat16)


def hashes(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What a checkpoint of Qwen3.8 also has, though it follows from the config: the numbers that hash n-grams."""
    if config["model_type"] != "qwen4_exp":
        return {}
    ngrams: NgramConfig = vars(family_of(config))["spec"].connections.ngrams
    (primes,), (multipliers,) = ngrams.primes, ngrams.multipliers
    offsets = [sum(primes[:head]) for head in range(len(primes))]
    prefix = f"model.language_model.layers.{ngrams.layers[0]}.ple.ple_embedding."
    named = {"layer_multipliers": multipliers, "ngram_heads_vocab_sizes": primes, "ngram_heads_offsets": offsets}
    return {prefix + name: torch.tensor(numbers) for name, numbers in named.items()}
