"""What each architecture of GGUF files says of itself, as the config.json of its family."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.configs.common import (
    counts_of,
    dense_layers_of,
    expert_width,
    experts_of,
    granite_multipliers,
    grouped_routing,
    has_experts,
    head_dim_of,
    mlps_of,
    num_layers_of,
    plain_heads,
    positions_of,
    refuse_unless,
    refuse_unless_sigmoid,
    shared_width,
    slides_of,
)
from moeinf.gguf.metadata import Metadata, numbers_of
from moeinf.types import JsonObject

_NEVER = 1e20  # a factor by which a pair stands still in any context; the converter writes 1e30


def _mixtral(m: Metadata) -> JsonObject:
    window = m.count("attention.sliding_window", 0)
    return plain_heads(m) | {
        "model_type": "mixtral",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "sliding_window": window or None,
    }


def _grok(m: Metadata) -> JsonObject:
    """Where a file says nothing of multipliers, those of Grok-1, as in llama.cpp.

    Positions are plain, as published, though converters write Grok-2's unused scaling as yarn; and only Grok-2, which
    has an MLP beside the experts, caps what routers give, though converters write that of Grok-1, too.
    """
    refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    beside, cap = m.has_in_a_layer("ffn_up.weight"), m.number("router_logit_softcapping", 30.0)
    return plain_heads(m) | {
        "model_type": "grok",
        "hidden_act": "gelu",
        "rope_scaling": None,
        "num_local_experts": experts_of(m),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
        "residual_moe": beside,
        "attn_output_multiplier": m.number("attention.output_scale", 0.08838834764831845),
        "embedding_multiplier_scale": m.number("embedding_scale", 78.38367176906169),
        "output_multiplier_scale": m.number("logit_scale", 0.5773502691896257),
        "attn_logit_softcapping": m.number("attn_logit_softcapping", 30.0),
        "router_logit_softcapping": cap if beside else None,
        "final_logit_softcapping": m.number("final_logit_softcapping", 0.0),
        "attn_temperature_len": m.count("attention.temperature_length", 0),
    }


def _glm4_moe(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    found = plain_heads(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return (
        found | grouped_routing(m) | {"model_type": "glm4_moe", "use_qk_norm": m.has_in_a_layer("attn_q_norm.weight")}
    )


def _gpt_oss(m: Metadata) -> JsonObject:
    slides = slides_of(m, lambda i: i % 2 == 1)
    found = plain_heads(m) | {
        "model_type": "gpt_oss",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "swiglu_limit": m.number("swiglu_clamp_exp", 7.0),
    }
    positions = positions_of(m)
    if "rope_scaling" in positions:  # as every gpt-oss is published, and no file says
        return found | {"rope_scaling": positions["rope_scaling"] | {"truncate": False}}
    return found | {"rope_scaling": {"rope_type": "default"}}


def _granite_moe(m: Metadata) -> JsonObject:
    shared = shared_width(m)
    return (
        plain_heads(m)
        | granite_multipliers(m)
        | {"model_type": "granitemoe", "num_local_experts": experts_of(m), "intermediate_size": expert_width(m)}
        | ({"model_type": "granitemoeshared", "shared_intermediate_size": shared} if shared else {})
    )


def _olmoe(m: Metadata) -> JsonObject:
    clip = m.number("attention.clamp_kqv", 0.0)
    return plain_heads(m) | {
        "model_type": "olmoe",
        "num_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "clip_qkv": clip or None,
    }


def _phimoe(m: Metadata) -> JsonObject:
    window = m.count("attention.sliding_window", 0)
    return plain_heads(m) | {
        "model_type": "phimoe",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "lm_head_bias": m.tensor("output.bias") is not None,
        "sliding_window": window or None,
    }


def _arctic(m: Metadata) -> JsonObject:
    return plain_heads(m) | {
        "model_type": "arctic",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "moe_layer_frequency": 1,
        "parallel_attn_mlp_res": True,
        "use_residual": True,
    }


def _dots1(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    return plain_heads(m) | grouped_routing(m) | {"model_type": "dots1", "sliding_window": None}


def _deepseek(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    refuse_unless(m, not m.flag("expert_weights_norm", False), "expert_weights_norm")
    return plain_heads(m) | grouped_routing(m) | {"model_type": "deepseek"}


def _deepseek_ocr(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    refuse_unless(m, m.count("attention.sliding_window", 0) == 0, "attention.sliding_window")
    head_dim, found = head_dim_of(m), grouped_routing(m)
    rotated = m.count("rope.dimension_count", 0)  # 0 is what checkpoints say of latent attention, which they have not
    refuse_unless(m, rotated in (0, head_dim), "rope.dimension_count")
    return found | {
        "model_type": "deepseek_ocr2",
        "head_dim": head_dim,
        "mlp_layer_types": mlps_of(m),
        "topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy",
    }


def _minimax_01(m: Metadata) -> JsonObject:
    m.values("attention.recurrent_layers"), m.count("full_attention_interval", 8)  # the tensors say it
    head_dim, scale = head_dim_of(m), m.number("residual_scale")
    linear = [m.tensor(f"blk.{i}.attn_norm_2.weight") is not None for i in range(num_layers_of(m))]
    scales = {f"{kind}_alpha_factor": scale for kind in ("full_attn", "linear_attn", "mlp")}
    return scales | {
        "model_type": "minimax",
        "head_dim": head_dim,
        "rotary_dim": m.count("rope.dimension_count", head_dim),
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "layer_types": ["linear_attention" if each else "full_attention" for each in linear],
    }


def _minimax_m2(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    head_dim = head_dim_of(m)
    return {
        "model_type": "minimax_m2",
        "head_dim": head_dim,
        "rotary_dim": m.count("rope.dimension_count", head_dim),
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
    }


def _minimax_m3(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    m.count("leading_dense_block_count", 0), m.count("expert_shared_count", 1)
    layers, dense = range(num_layers_of(m)), dense_layers_of(m)
    chooses = [m.tensor(f"blk.{i}.indexer.q_proj.weight") is not None for i in layers]
    return plain_heads(m) | {
        "model_type": "minimax_m3_vl",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "shared_intermediate_size": shared_width(m),
        "dense_intermediate_size": m.rows(f"blk.{dense[0]}.ffn_up.weight") if dense else 0,
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        "swiglu_limit": 7.0,  # as published: no file says
        "mlp_layer_types": ["dense" if i in dense else "sparse" for i in layers],
        "layer_types": ["minimax_m3_sparse" if each else "full_attention" for each in chooses],
        "index_n_heads": m.count("attention.indexer.head_count"),
        "index_head_dim": m.count("attention.indexer.key_length"),
        "index_topk_blocks": m.count("attention.indexer.top_k"),
        "index_block_size": m.count("attention.indexer.block_size"),
        "index_local_blocks": m.count("attention.indexer.local_blocks"),
    }


def _ernie4_5_moe(m: Metadata) -> JsonObject:
    m.count("expert_shared_feed_forward_length", 0)
    sparse = [i for i in range(num_layers_of(m)) if i not in dense_layers_of(m)]
    return plain_heads(m) | {
        "model_type": "ernie4_5_moe",
        "moe_num_experts": experts_of(m),
        "moe_num_shared_experts": m.count("expert_shared_count", 0),
        "moe_layer_start_index": m.count("leading_dense_block_count", 0),
        "moe_layer_end_index": max(sparse, default=0),
        "moe_layer_interval": m.count("interleave_moe_layer_step", 1),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
    }


def _exaone_moe(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    layers, dense = range(num_layers_of(m)), dense_layers_of(m)
    found = grouped_routing(m)
    experts, shared = found.pop("n_routed_experts"), found.pop("n_shared_experts")
    slides = slides_of(m, lambda i: (i + 1) % 4 == 0)
    return (
        plain_heads(m)
        | found
        | {
            "model_type": "exaone_moe",
            "num_experts": experts,
            "num_shared_experts": shared,
            "sliding_window": m.count("attention.sliding_window"),
            "layer_types": ["sliding_attention" if slides[i] else "full_attention" for i in layers],
            "mlp_layer_types": ["dense" if i in dense else "sparse" for i in layers],
        }
    )


def gemma4(m: Metadata) -> JsonObject:
    experts = (
        {
            "num_experts": experts_of(m),
            "top_k_experts": m.count("expert_used_count"),
            "moe_intermediate_size": expert_width(m),
            "expert_factors": False,
        }
        if has_experts(m)
        else {}
    )
    layers = range(num_layers_of(m))
    slides = slides_of(m, lambda i: (i + 1) % 6 == 0)
    sliding, whole = (next((i for i in layers if slides[i] == kind), None) for kind in (True, False))
    heads = counts_of(m, "attention.head_count_kv")
    shared = whole is not None and m.tensor(f"blk.{whole}.attn_v.weight") is None
    found = {"head_dim": head_dim_of(m), "num_key_value_heads": None if whole is None else heads[whole]}
    of_window = {name: m.count(f"attention.{name}_length_swa", found["head_dim"]) for name in ("key", "value")}
    own = {"head_dim": of_window["key"], "num_key_value_heads": None if sliding is None else heads[sliding]}
    for name, rotated, size in (("", found["head_dim"], "key"), ("_swa", of_window["key"], "value")):
        sound = m.count(f"rope.dimension_count{name}", rotated) == rotated and of_window[size] == of_window["key"]
        refuse_unless(m, sound, f"rope.dimension_count{name}")
    freqs = m.tensor("rope_freqs.weight")
    factors = [1.0] if freqs is None else numbers_of(m.gguf, freqs)
    turned = sum(factor == 1.0 for factor in factors)
    still = all(each >= _NEVER for each in factors[turned:])
    if not (still and all(each == 1.0 for each in factors[:turned])):
        raise UnsupportedModelError(
            f"{m.where}: tensor 'rope_freqs.weight' has other factors than 1 of pairs that turn and {_NEVER:.0e} of "
            "those that do not, which is not supported"
        )
    return {
        "model_type": "gemma4",
        **(own if sliding is not None else found),
        "per_layer_config": {str(i): found for i in layers if not slides[i]},
        "attention_k_eq_v": shared,
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if slides[i] else "full_attention" for i in layers],
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 1e4)},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": m.number("rope.freq_base", 1e6),
                "partial_rotary_factor": turned / len(factors),
            },
        },
        "final_logit_softcapping": m.number("final_logit_softcapping", 0.0) or None,
        "hidden_activation": "gelu_pytorch_tanh",
        "enable_moe_block": bool(experts),
        **experts,
        "intermediate_size": m.count("feed_forward_length"),
        "num_kv_shared_layers": m.count("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": m.count("embedding_length_per_layer_input", 0),
    }


def _dbrx(m: Metadata) -> JsonObject:
    refuse_unless(m, m.number("attention.layer_norm_epsilon", 1e-5) == 1e-5, "attention.layer_norm_epsilon")
    return {
        "model_type": "dbrx",
        "attn_config": {
            "clip_qkv": m.number("attention.clamp_kqv", 0.0) or None,
            "kv_n_heads": m.count("attention.head_count_kv"),
            "rope_theta": m.number("rope.freq_base", 1e4),
        },
        "ffn_config": {
            "ffn_hidden_size": expert_width(m),
            "moe_num_experts": experts_of(m),
            "moe_top_k": m.count("expert_used_count"),
        },
    }


def minicpm(m: Metadata) -> JsonObject:
    """Old files say nothing of what is scaled, and mean the numbers of every published checkpoint."""
    layers, width = num_layers_of(m), m.count("embedding_length")
    depth = m.number("residual_scale", 1.4 / layers**0.5) * layers**0.5
    experts = {"num_experts": experts_of(m), "intermediate_size": expert_width(m)} if has_experts(m) else {}
    return plain_heads(m) | {
        "model_type": "minicpm",
        "scale_emb": m.number("embedding_scale", 12.0),
        "scale_depth": round(depth, 6),
        "dim_model_base": round(width / m.number("logit_scale", width / 256)),
        "intermediate_size": m.count("feed_forward_length"),
        **experts,
    }


ARCHITECTURES: dict[str, Callable[[Metadata], JsonObject]] = {
    "llama": _mixtral,
    "glm4moe": _glm4_moe,
    "grok": _grok,
    "dots1": _dots1,
    "deepseek": _deepseek,
    "deepseek2-ocr": _deepseek_ocr,
    "minimax-01": _minimax_01,
    "minimax-m2": _minimax_m2,
    "minimax-m3": _minimax_m3,
    "ernie4_5-moe": _ernie4_5_moe,
    "exaone-moe": _exaone_moe,
    "gemma4": gemma4,
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite_moe,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "arctic": _arctic,
    "dbrx": _dbrx,
    "minicpm": minicpm,
}
