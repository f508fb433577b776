"""What files say of architectures with recurrent layers, and of those whose attention is one matrix."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.configs.common import (
    SIGMOID,
    expert_width,
    experts_of,
    granite_multipliers,
    head_dim_of,
    num_layers_of,
    plain_heads,
    refuse_unless,
    routing_is_corrected,
    shared_width,
)
from moeinf.gguf.metadata import Metadata
from moeinf.types import JsonObject


def _mamba_heads(m: Metadata) -> tuple[int, int]:
    """How many, and of how many numbers."""
    heads, inner = m.count("ssm.time_step_rank"), m.count("ssm.inner_size")
    if not heads or inner % heads:
        raise UnsupportedModelError(f"{m.where}: ssm.inner_size {inner} is no whole number of {heads} heads")
    return heads, inner // heads


def _recurrent(m: Metadata) -> list[bool]:
    """Of each layer, whether it has a recurrence instead of attention: its tensors tell."""
    return [m.tensor(f"blk.{i}.ssm_in.weight") is not None for i in range(num_layers_of(m))]


def _granite_hybrid(m: Metadata) -> JsonObject:
    heads, head_dim = _mamba_heads(m)
    hidden = m.count("embedding_length")
    refuse_unless(m, heads * head_dim % max(1, hidden) == 0, "ssm.inner_size")
    rotated = m.flag("rope.scaling.finetuned", True)  # llama.cpp's switch for positions
    return (
        plain_heads(m)
        | granite_multipliers(m)
        | {
            "model_type": "granitemoehybrid",
            "num_local_experts": experts_of(m),
            "intermediate_size": expert_width(m),
            "shared_intermediate_size": shared_width(m),
            "position_embedding_type": "rope" if rotated else "nope",
            "layer_types": ["linear_attention" if each else "full_attention" for each in _recurrent(m)],
            "mamba_n_heads": heads,
            "mamba_d_head": head_dim,
            "mamba_expand": heads * head_dim // max(1, hidden),
            "mamba_n_groups": m.count("ssm.group_count", 1),
            "mamba_d_state": m.count("ssm.state_size"),
            "mamba_d_conv": m.count("ssm.conv_kernel"),
            "mamba_conv_bias": m.has_in_a_layer("ssm_conv1d.bias"),
        }
    )


def _nemotron_h(m: Metadata) -> JsonObject:
    heads, head_dim = _mamba_heads(m)
    refuse_unless(m, m.count("expert_gating_func", SIGMOID) in (0, SIGMOID), "expert_gating_func")
    refuse_unless(m, m.count("expert_shared_count", 1) == 1, "expert_shared_count")
    m.count("rope.dimension_count", 0)  # nothing is rotated
    m.number("attention.layer_norm_epsilon", 0.0)  # the same under another name
    return {
        "model_type": "nemotron_h",
        "layers_block_type": [_kind(m, i) for i in range(num_layers_of(m))],
        "head_dim": head_dim_of(m),
        "layer_norm_epsilon": m.number("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": heads,
        "mamba_head_dim": head_dim,
        "n_groups": m.count("ssm.group_count"),
        "ssm_state_size": m.count("ssm.state_size"),
        "conv_kernel": m.count("ssm.conv_kernel"),
        "use_conv_bias": m.has_in_a_layer("ssm_conv1d.bias"),
        "intermediate_size": _plain_width(m),
        "n_routed_experts": experts_of(m),
        "n_shared_experts": 1,
        "moe_intermediate_size": expert_width(m),
        "moe_shared_expert_intermediate_size": shared_width(m),
        "moe_latent_size": m.count("moe_latent_size", 0) or None,
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": m.flag("expert_weights_norm", True),
        "n_group": m.count("expert_group_count", 1) or 1,
        "topk_group": m.count("expert_group_used_count", 1) or 1,
    }


def _plain_width(m: Metadata) -> int:
    """Of blocks without experts, where there are any."""
    found = (tensor.shape[0] for name, tensor in m.gguf.tensors.items() if name.endswith(".ffn_up.weight"))
    return next(found, expert_width(m))


def _kind(m: Metadata, layer: int) -> str:
    for name, kind in (("ssm_in", "linear_attention"), ("attn_q", "full_attention"), ("ffn_gate_inp", "moe")):
        if m.tensor(f"blk.{layer}.{name}.weight") is not None:
            return kind
    return "mlp"


def _lfm2_moe(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("expert_gating_func", SIGMOID) in (0, SIGMOID), "expert_gating_func")
    convolved = [m.tensor(f"blk.{i}.shortconv.conv.weight") is not None for i in range(num_layers_of(m))]
    return plain_heads(m) | {
        "model_type": "lfm2_moe",
        "norm_eps": m.number("attention.layer_norm_rms_epsilon"),
        "layer_types": ["conv" if each else "full_attention" for each in convolved],
        "conv_L_cache": m.count("shortconv.l_cache"),
        "conv_bias": m.has_in_a_layer("shortconv.conv.bias"),
        "num_dense_layers": m.count("leading_dense_block_count", 0),
        "intermediate_size": m.count("feed_forward_length"),
        "num_experts": experts_of(m),
        "moe_intermediate_size": expert_width(m),
        "use_expert_bias": routing_is_corrected(m),
        "norm_topk_prob": m.flag("expert_weights_norm", True),
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
    }


def _jamba(m: Metadata) -> JsonObject:
    layers = num_layers_of(m)
    sparse = [m.tensor(f"blk.{i}.ffn_gate_inp.weight") is not None for i in range(layers)]
    return {
        "model_type": "jamba",
        "head_dim": head_dim_of(m),
        "num_experts": experts_of(m),
        "intermediate_size": m.count("feed_forward_length"),
        "mamba_expand": m.count("ssm.inner_size") // max(1, m.count("embedding_length")),
        "mamba_d_state": m.count("ssm.state_size"),
        "mamba_d_conv": m.count("ssm.conv_kernel"),
        "mamba_dt_rank": m.count("ssm.time_step_rank"),
        "mamba_conv_bias": m.has_in_a_layer("ssm_conv1d.bias"),
        **_every(m, "attn_layer", [not each for each in _recurrent(m)]),
        **_every(m, "expert_layer", sparse),
    }


def _every(m: Metadata, what: str, layers: list[bool]) -> JsonObject:
    """The period and the offset that give these layers."""
    chosen = [i for i, each in enumerate(layers) if each]
    offset = chosen[0] if chosen else len(layers)
    period = chosen[1] - offset if len(chosen) > 1 else len(layers) + 1
    if [i % period == offset for i in range(len(layers))] != layers:
        raise UnsupportedModelError(f"{m.where}: layers {chosen} are not every so many ({what}_period)")
    return {f"{what}_period": period, f"{what}_offset": offset}


def _bailing(m: Metadata) -> JsonObject:
    """Both generations; of the first, files have queries, keys and values apart."""
    second = m.architecture == "bailingmoe2"
    gating = SIGMOID if second else 1
    refuse_unless(m, m.count("expert_gating_func", gating) in (0, gating), "expert_gating_func")
    m.count("expert_shared_feed_forward_length", 0)
    found: JsonObject = {
        "model_type": "bailing_moe",
        "num_experts": experts_of(m),
        "num_shared_experts": m.count("expert_shared_count", 0),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
        "first_k_dense_replace": m.count("leading_dense_block_count", 0),
        "norm_topk_prob": m.flag("expert_weights_norm", True),
        "use_bias": False,
    }
    scale = m.number("expert_weights_scale", 1.0) or 1.0
    if not second:
        refuse_unless(m, scale == 1.0, "expert_weights_scale")
        return plain_heads(m) | found | {"fused_projections": False}
    heads = plain_heads(m)
    heads.setdefault("partial_rotary_factor", 1.0)
    return (
        heads
        | found
        | {
            "score_function": "sigmoid",
            "use_qk_norm": m.has_in_a_layer("attn_q_norm.weight"),
            "moe_router_enable_expert_bias": routing_is_corrected(m),
            "n_group": m.count("expert_group_count", 1) or 1,
            "topk_group": m.count("expert_group_used_count", 1) or 1,
            "routed_scaling_factor": scale,
            "num_nextn_predict_layers": m.count("nextn_predict_layers", 0),
        }
    )


HYBRIDS: dict[str, Callable[[Metadata], JsonObject]] = {
    "granitehybrid": _granite_hybrid,
    "nemotron_h_moe": _nemotron_h,
    "lfm2moe": _lfm2_moe,
    "jamba": _jamba,
    "bailingmoe": _bailing,
    "bailingmoe2": _bailing,
}
