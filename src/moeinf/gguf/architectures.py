"""What each architecture of GGUF files says of itself, as the config.json of its family."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.common import (
    SIGMOID,
    Config,
    expert_width,
    experts_of,
    granite_multipliers,
    head_dim_of,
    num_layers_of,
    plain_heads,
    positions_of,
    refuse_unless,
    shared_width,
)
from moeinf.gguf.metadata import Metadata


def _mixtral(m: Metadata) -> Config:
    window = m.count("attention.sliding_window", 0)
    return plain_heads(m) | {
        "model_type": "mixtral",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "sliding_window": window or None,
    }


def _dense_layers(m: Metadata) -> list[int]:
    """The layers that have a plain block instead of experts."""
    return [i for i in range(num_layers_of(m)) if m.tensor(f"blk.{i}.ffn_gate_inp.weight") is None]


def _qwen(m: Metadata, model_type: str, *, normalised: bool) -> Config:
    m.count("expert_shared_feed_forward_length", 0), m.count("expert_shared_count", 0)
    refuse_unless(m, m.number("expert_weights_scale", 1.0) in (0.0, 1.0), "expert_weights_scale")
    refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    return {
        "model_type": model_type,
        "num_experts": experts_of(m),
        "norm_topk_prob": m.flag("expert_weights_norm", normalised),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length", 0),
        "mlp_only_layers": _dense_layers(m),
    }


def _qwen2_moe(m: Metadata) -> Config:
    head_dim = head_dim_of(m)
    refuse_unless(m, m.count("rope.dimension_count", head_dim) == head_dim, "rope.dimension_count")
    return _qwen(m, "qwen2_moe", normalised=False) | {
        "head_dim": head_dim,
        "attention_bias": False,
        "qkv_bias": m.has_in_a_layer("attn_q.bias"),
        "shared_expert_intermediate_size": shared_width(m),
    }


def _qwen3_moe(m: Metadata) -> Config:
    return plain_heads(m) | _qwen(m, "qwen3_moe", normalised=True)


def _delta_net(m: Metadata) -> Config:
    """What Qwen3-Next and Qwen3.5 say of their recurrent layers."""
    values, inner = m.count("ssm.time_step_rank"), m.count("ssm.inner_size")
    if not values or inner % values:
        raise UnsupportedModelError(f"{m.where}: ssm.inner_size {inner} is no whole number of {values} heads")
    every, said = m.count("full_attention_interval", 4), m.values("attention.recurrent_layers")
    if said is None:
        recurrent = [bool((i + 1) % max(1, every)) for i in range(num_layers_of(m))]
    else:
        recurrent = [bool(each) for each in said[: num_layers_of(m)]]
    return {
        "linear_conv_kernel_dim": m.count("ssm.conv_kernel"),
        "linear_key_head_dim": m.count("ssm.state_size"),
        "linear_num_key_heads": m.count("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
        "full_attention_interval": every,
        "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
        "shared_expert_intermediate_size": shared_width(m),
    }


def _qwen3_next(m: Metadata) -> Config:
    apart = not m.has_in_a_layer("ssm_in.weight")
    found = plain_heads(m) | _qwen(m, "qwen3_next", normalised=True) | _delta_net(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | ({"stacked_projections": False} if apart else {})


def _qwen3_5_moe(m: Metadata) -> Config:
    found = plain_heads(m) | _qwen(m, "qwen3_5_moe", normalised=True) | _delta_net(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found


def _grouped(m: Metadata) -> Config:
    """The routing of DeepSeek's blocks, which GLM-4.5 has too."""
    m.count("expert_shared_feed_forward_length", 0)
    return {
        "n_routed_experts": experts_of(m),
        "n_shared_experts": m.count("expert_shared_count", 0),
        "n_group": m.count("expert_group_count", 1) or 1,
        "topk_group": m.count("expert_group_used_count", 1) or 1,
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "first_k_dense_replace": m.count("leading_dense_block_count", 0),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
        "num_nextn_predict_layers": m.count("nextn_predict_layers", 0),
    }


def _deepseek(m: Metadata) -> Config:
    corrected = m.has_in_a_layer("exp_probs_b.bias")
    gating = m.count("expert_gating_func", 0) or (SIGMOID if corrected else 1)
    refuse_unless(m, gating == (SIGMOID if corrected else 1), "expert_gating_func")
    rotated, rank = m.count("rope.dimension_count"), m.count("attention.kv_lora_rank")
    # "mla": of a head as published. Files from before have these under the plain names.
    plain_key, plain_value = m.count("attention.key_length"), m.count("attention.value_length")
    found = _grouped(m) | {
        "num_key_value_heads": m.count("attention.head_count"),
        "q_lora_rank": m.count("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": m.count("attention.key_length_mla", plain_key) - rotated,
        "v_head_dim": m.count("attention.value_length_mla", plain_value),
        "attention_bias": m.has_in_a_layer("attn_kv_a_mqa.bias"),
    }
    if corrected:
        return found | {"model_type": "deepseek_v3", "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    groups = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return found | {"model_type": "deepseek_v2", "scoring_func": "softmax", "topk_method": groups}


def _glm4_moe(m: Metadata) -> Config:
    refuse_unless(m, m.count("expert_gating_func", SIGMOID) in (0, SIGMOID), "expert_gating_func")
    found = plain_heads(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | _grouped(m) | {"model_type": "glm4_moe", "use_qk_norm": m.has_in_a_layer("attn_q_norm.weight")}


def _gpt_oss(m: Metadata) -> Config:
    pattern = m.values("attention.sliding_window_pattern")
    slides = pattern or [i % 2 == 0 for i in range(num_layers_of(m))]
    found = plain_heads(m) | {
        "model_type": "gpt_oss",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides[: num_layers_of(m)]],
        "swiglu_limit": m.number("swiglu_clamp_exp", 7.0),
    }
    positions = positions_of(m)
    if "rope_scaling" in positions:  # as every gpt-oss is published, and no file says
        return found | {"rope_scaling": positions["rope_scaling"] | {"truncate": False}}
    return found | {"rope_scaling": {"rope_type": "default"}}


def _granite_moe(m: Metadata) -> Config:
    if m.has_in_a_layer("ffn_up_shexp.weight"):
        raise UnsupportedModelError(f"{m.where}: Granite with shared experts (granitemoeshared) is not supported")
    m.count("expert_shared_feed_forward_length", 0)
    return (
        plain_heads(m)
        | granite_multipliers(m)
        | {"model_type": "granitemoe", "num_local_experts": experts_of(m), "intermediate_size": expert_width(m)}
    )


def _olmoe(m: Metadata) -> Config:
    clip = m.number("attention.clamp_kqv", 0.0)
    return plain_heads(m) | {
        "model_type": "olmoe",
        "num_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "clip_qkv": clip or None,
    }


def _phimoe(m: Metadata) -> Config:
    window = m.count("attention.sliding_window", 0)
    return plain_heads(m) | {
        "model_type": "phimoe",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "lm_head_bias": m.tensor("output.bias") is not None,
        "sliding_window": window or None,
    }


def _arctic(m: Metadata) -> Config:
    return plain_heads(m) | {
        "model_type": "arctic",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "moe_layer_frequency": 1,
        "parallel_attn_mlp_res": True,
        "use_residual": True,
    }


ARCHITECTURES: dict[str, Callable[[Metadata], Config]] = {
    "llama": _mixtral,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "qwen3next": _qwen3_next,
    "qwen35moe": _qwen3_5_moe,
    "deepseek2": _deepseek,
    "glm4moe": _glm4_moe,
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite_moe,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "arctic": _arctic,
}
