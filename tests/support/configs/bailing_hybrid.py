"""Tiny configs of Ling 3.0."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear, silu

from tests.support.tiny_models import COMMON, transformers_model

_LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
LING: dict[str, Any] = COMMON | {
    "model_type": "bailing_hybrid",
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "layer_group_size": 2,
    "head_dim": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.4,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-4,  # as of qwen3_next
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": LING,
    "bailing_hybrid as published, clamped experts": LING
    | {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "expert_swiglu_limit_list": [0, 0, 0, 0.04],
        "share_expert_swiglu_limit_list": [0, 0, 0.06, 0.05],
        "partial_rotary_factor": 0.5,
        "rope_theta": 300.0,
        "no_kda_lora": True,
        "gated_attention_proj_granularity_type": "head_wise",
        "moe_shared_expert_intermediate_size": 24,
        "score_function": "sigmoid",
        "num_nextn_predict_layers": 0,
    },
    "bailing_hybrid unbounded decays, biased": LING
    | {
        "kda_safe_gate": False,
        "attention_bias": True,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "num_hidden_layers": 3,
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', with the limits that vLLM and SGLang heed: min(silu(gate), limit) * clip(up, -limit, limit)."""
    model = transformers_model(config)
    for name, clamped in zip(_LIMITS, (_clamp_routed, _clamp_shared), strict=True):
        for layer, limit in enumerate(config.get(name, ())):
            if limit:
                clamped(model.model.layers[layer].mlp, limit)
    return model


def _clamp_shared(block: Any, limit: float) -> None:
    mlp = block.shared_experts
    mlp.forward = lambda x: mlp.down_proj(_product(mlp.gate_proj(x), mlp.up_proj(x), limit))


def _clamp_routed(block: Any, limit: float) -> None:
    block.experts.forward = partial(_routed, block.experts, limit)


def _routed(experts: Any, limit: float, hidden: Any, ids: Any, weights: Any) -> Any:
    sums = torch.zeros_like(hidden)
    for token, (chosen, shares) in enumerate(zip(ids, weights, strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = linear(hidden[token], experts.gate_up_proj[expert]).chunk(2)
            sums[token] += share * linear(_product(gate, up, limit), experts.down_proj[expert])
    return sums


def _product(gate: Any, up: Any, limit: float) -> Any:
    return silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
