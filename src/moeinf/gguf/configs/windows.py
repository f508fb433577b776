"""What files say of architectures whose layers differ in windows, positions or heads."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.gguf.configs.common import (
    SIGMOID,
    counts_of,
    dense_layers_of,
    expert_width,
    experts_of,
    granite_multipliers,
    grouped_routing,
    head_dim_of,
    limits_of,
    mlps_of,
    num_layers_of,
    plain_heads,
    positions_of,
    refuse_unless,
    refuse_unless_sigmoid,
    shared_width,
    slides_of,
)
from moeinf.gguf.metadata import Metadata
from moeinf.types import JsonObject

_LLAMA4_CHUNK = 8192  # of attention, and of the sharpening of queries: what no file says, and every checkpoint has


def _kinds(m: Metadata, whole: Callable[[int], bool], windowed: str = "sliding_attention") -> list[str]:
    """Of each layer; whole: as `slides_of` takes it."""
    return [windowed if slides else "full_attention" for slides in slides_of(m, whole)]


def _ropes(m: Metadata, rotated: int, rotated_sliding: int, head_dim: int) -> JsonObject:
    """Positions of each kind of layer: those with a window have plain ones of their own base."""
    whole = positions_of(m)
    theta = whole["rope_theta"]
    full = {"rope_type": "default"} | whole.get("rope_scaling", {}) | {"rope_theta": theta}
    sliding = {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", theta)}
    shares = {"partial_rotary_factor": rotated / head_dim}, {"partial_rotary_factor": rotated_sliding / head_dim}
    return {
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {"full_attention": full | shares[0], "sliding_attention": sliding | shares[1]},
    }


def _afmoe(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    found = grouped_routing(m)
    refuse_unless(m, found["n_group"] == 1, "expert_group_count")
    return plain_heads(m) | {
        "model_type": "afmoe",
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "num_dense_layers": found["first_k_dense_replace"],
        "route_scale": found["routed_scaling_factor"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "intermediate_size": found["intermediate_size"],
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": _kinds(m, lambda i: (i + 1) % 4 == 0),
        "mup_enabled": True,
    }


def _hy_v3(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    width = expert_width(m)
    m.count("expert_shared_feed_forward_length", 0)
    refuse_unless(m, shared_width(m) % width == 0, "expert_shared_feed_forward_length")
    return plain_heads(m) | {
        "model_type": "hy_v3",
        "num_experts": experts_of(m),
        "num_shared_experts": shared_width(m) // width,
        "moe_intermediate_size": width,
        "intermediate_size": m.count("feed_forward_length"),
        "router_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        "mlp_layer_types": mlps_of(m),
        "num_nextn_predict_layers": m.count("nextn_predict_layers", 0),
    }


def _hunyuan(m: Metadata) -> JsonObject:
    width = expert_width(m)
    m.count("expert_shared_feed_forward_length", width)
    refuse_unless(m, shared_width(m) == width, "expert_shared_feed_forward_length")
    refuse_unless(m, m.count("expert_shared_count", 1) == 1, "expert_shared_count")
    return plain_heads(m) | {
        "model_type": "hunyuan_v1_moe",
        "num_experts": experts_of(m),
        "moe_topk": m.count("expert_used_count"),
        "intermediate_size": width,
    }


def _llama4(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("attention.sliding_window", _LLAMA4_CHUNK) == _LLAMA4_CHUNK, "attention.sliding_window")
    m.count("interleave_moe_layer_step", 1)
    dense = dense_layers_of(m)
    head_dim = head_dim_of(m)
    refuse_unless(m, m.count("rope.dimension_count", head_dim) == head_dim, "rope.dimension_count")
    experts, width = experts_of(m), expert_width(m)
    return {
        "model_type": "llama4",
        "head_dim": head_dim,
        "num_local_experts": experts,
        "moe_layers": [i for i in range(num_layers_of(m)) if i not in dense],
        "intermediate_size": width,
        "intermediate_size_mlp": m.count("feed_forward_length", width),
        "use_qk_norm": experts != 128,  # Maverick's queries and keys are not normed, which no tensor tells
        "attention_chunk_size": _LLAMA4_CHUNK,
        "floor_scale": _LLAMA4_CHUNK,
        "attn_scale": 0.1,
        "no_rope_layer_interval": 4,
    }


def _laguna(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    refuse_unless(m, m.count("expert_shared_count", 1) == 1, "expert_shared_count")
    m.count("leading_dense_block_count", 0), m.count("expert_shared_feed_forward_length", 0)
    head_dim, heads = head_dim_of(m), counts_of(m, "attention.head_count")
    rotated = m.count("rope.dimension_count", head_dim)
    of_heads = m.rows("blk.0.attn_gate.weight") == heads[0]
    window = m.count("attention.sliding_window", 0)
    return _ropes(m, rotated, m.count("rope.dimension_count_swa", rotated), head_dim) | {
        "model_type": "laguna",
        "head_dim": head_dim,
        "gating": "per-head" if of_heads else "per-element",
        "num_attention_heads": heads[0],
        "num_attention_heads_per_layer": heads,
        "layer_types": _kinds(m, lambda i: i % 4 == 0 or not window),
        "sliding_window": window or 512,
        "mlp_layer_types": mlps_of(m),
        "num_experts": experts_of(m),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
        "shared_expert_intermediate_size": shared_width(m),
        "moe_routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
    }


def _mellum(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    head_dim, window = head_dim_of(m), m.count("attention.sliding_window", 0)
    rotated = m.count("rope.dimension_count", head_dim)
    return _ropes(m, rotated, m.count("rope.dimension_count_swa", rotated), head_dim) | {
        "model_type": "mellum",
        "head_dim": head_dim,
        "num_experts": experts_of(m),
        "norm_topk_prob": m.flag("expert_weights_norm", True),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length", 0) or expert_width(m),
        "sliding_window": window or None,
        "layer_types": _kinds(m, lambda i: (i + 1) % 4 == 0 or not window),
        "mlp_layer_types": mlps_of(m),
    }


def _mimo2(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    heads, kinds = counts_of(m, "attention.head_count_kv"), _kinds(m, lambda i: i == 0 or (i + 1) % 6 == 0)
    whole, own = (
        next((count for count, kind in zip(heads, kinds, strict=True) if (kind == "full_attention") == sees_all), None)
        for sees_all in (True, False)
    )
    number = whole if whole is not None else own
    refuse_unless(m, bool(number) and own != 0, "attention.head_count_kv")
    key = m.count("attention.key_length")
    refuse_unless(m, key > 0, "attention.key_length")
    rotated = m.count("rope.dimension_count", key)
    found = grouped_routing(m) | {"norm_topk_prob": True}
    shared = found.pop("n_shared_experts")
    refuse_unless(m, not shared, "expert_shared_count")
    scale = m.number("attention.value_scale", 1.0)
    return (
        _ropes(m, rotated, m.count("rope.dimension_count_swa", rotated), key)
        | found
        | {
            "model_type": "mimo_v2_flash",
            "head_dim": key,
            "v_head_dim": m.count("attention.value_length", key),
            "num_key_value_heads": number,
            "swa_num_key_value_heads": own,
            "sliding_window": m.count("attention.sliding_window"),
            "layer_types": kinds,
            "mlp_layer_types": mlps_of(m),
            "attention_value_scale": scale,
        }
    )


def _step(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    m.count("leading_dense_block_count", 0), m.count("moe_every_n_layers", 1)
    m.count("expert_shared_feed_forward_length", 0)
    layers, head_dim, kinds = range(num_layers_of(m)), head_dim_of(m), _kinds(m, lambda i: i % 4 == 0)
    heads, keys = counts_of(m, "attention.head_count"), counts_of(m, "attention.head_count_kv")
    refuse_unless(m, len(set(keys)) == 1, "attention.head_count_kv")
    of_kind = {kind: {heads[i] for i in layers if kinds[i] == kind} for kind in kinds}
    refuse_unless(m, all(len(found) == 1 for found in of_kind.values()), "attention.head_count")
    whole, sliding = (min(of_kind.get(kind, of_kind[kinds[0]])) for kind in ("full_attention", "sliding_attention"))
    limits = {
        "swiglu_limits": limits_of(m, "swiglu_clamp_exp", len(layers)),
        "swiglu_limits_shared": limits_of(m, "swiglu_clamp_shexp", len(layers)),
    }
    found = _ropes(m, head_dim // 2, head_dim, head_dim)  # in layers that see all tokens half of a head, by llama.cpp
    rope = found["rope_parameters"]["full_attention"]
    for name in ("short_factor", "long_factor"):  # the file has as many as whole heads would need
        if name in rope:
            rope[name] = rope[name][: head_dim // 4]
    return (
        found
        | limits
        | {
            "model_type": "step3p7",
            "head_dim": head_dim,
            "num_attention_heads": whole,
            "num_sliding_attention_heads": sliding,
            "num_key_value_heads": keys[0],
            "layer_types": kinds,
            "mlp_layer_types": mlps_of(m),
            "sliding_window": m.count("attention.sliding_window"),
            "n_routed_experts": experts_of(m),
            "moe_intermediate_size": expert_width(m),
            "intermediate_size": m.count("feed_forward_length"),
            "share_expert_dim": shared_width(m),
            "moe_router_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        }
    )


def _granite_swa(m: Metadata) -> JsonObject:
    m.count("expert_shared_feed_forward_length", 0)
    rotated = m.values("attention.rope_pattern")
    theta = m.number("rope.freq_base", 1e4)
    return (
        plain_heads(m)
        | granite_multipliers(m)
        | {
            "model_type": "granitemoe_swa",
            "num_local_experts": experts_of(m),
            "intermediate_size": expert_width(m),
            "shared_intermediate_size": _granite_shared(m),
            "sliding_window": m.count("attention.sliding_window"),
            "layer_types": _kinds(m, lambda i: i % 4 == 0),
        }
        | ({} if rotated is None else {"layer_rope_theta": [theta if each else 0 for each in rotated]})
    )


def _granite_shared(m: Metadata) -> int:
    """Its file has gate and up in one matrix, by up's name."""
    rows = shared_width(m)
    return rows if m.has_in_a_layer("ffn_gate_shexp.weight") else rows // 2


def _cohere2(m: Metadata) -> JsonObject:
    gating = m.count("expert_gating_func", 0) or SIGMOID
    refuse_unless(m, gating in (1, SIGMOID), "expert_gating_func")
    refuse_unless(m, m.number("expert_weights_scale", 1.0) in (0.0, 1.0), "expert_weights_scale")
    m.count("leading_dense_block_count", 0), m.count("expert_shared_feed_forward_length", 0)
    dense, head_dim = dense_layers_of(m), head_dim_of(m)
    refuse_unless(m, m.count("rope.dimension_count", head_dim) == head_dim, "rope.dimension_count")
    centred = m.number("attention.layer_norm_epsilon", 0.0)
    return {
        "model_type": "cohere2_moe",
        "head_dim": head_dim,
        "layer_norm_eps": centred or 1e-5,
        "rms_norm_eps": m.number("attention.layer_norm_rms_epsilon", 0.0) or None,
        "layer_types": _kinds(m, lambda i: i % 4 == 0),
        "sliding_window": m.count("attention.sliding_window"),
        "mlp_layer_types": mlps_of(m),
        "num_experts": experts_of(m),
        "num_shared_experts": m.count("expert_shared_count", 0),
        "expert_selection_fn": "sigmoid" if gating == SIGMOID else "softmax",
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "intermediate_size": expert_width(m),
        "prefix_dense_intermediate_size": m.rows(f"blk.{dense[0]}.ffn_up.weight") if dense else None,
        "logit_scale": m.number("logit_scale"),
    }


def _smallthinker(m: Metadata) -> JsonObject:
    gating, window = m.count("expert_gating_func", 0), m.count("attention.sliding_window", 0)
    refuse_unless(m, gating in (1, SIGMOID), "expert_gating_func")
    layers = range(num_layers_of(m))
    return plain_heads(m) | {
        "model_type": "smallthinker",
        "hidden_act": "relu",
        "moe_num_primary_experts": experts_of(m),
        "moe_num_active_primary_experts": m.count("expert_used_count"),
        "moe_ffn_hidden_size": expert_width(m),
        "moe_primary_router_apply_softmax": gating == 1,
        "rope_layout": [int(not window or i % 4 != 0) for i in layers],
        "sliding_window_layout": [int(window > 0 and each) for each in slides_of(m, lambda i: i % 4 == 0)],
        "sliding_window_size": window or None,
    }


def _maple(m: Metadata) -> JsonObject:
    limits = m.values("swiglu_clamp_exp") or [m.number("swiglu_clamp_exp", 0.0)]
    refuse_unless(m, set(limits) == {7.0}, "swiglu_clamp_exp")
    found = plain_heads(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | {
        "model_type": "maple",
        "num_experts": experts_of(m),
        "moe_intermediate_size": expert_width(m),
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": _kinds(m, lambda i: (i + 1) % 4 == 0),
    }


WINDOWED: dict[str, Callable[[Metadata], JsonObject]] = {
    "afmoe": _afmoe,
    "smallthinker": _smallthinker,
    "maple": _maple,
    "hy_v3": _hy_v3,
    "hunyuan-moe": _hunyuan,
    "llama4": _llama4,
    "laguna": _laguna,
    "mellum": _mellum,
    "mimo2": _mimo2,
    "step35": _step,
    "granite_swa": _granite_swa,
    "cohere2moe": _cohere2,
}
