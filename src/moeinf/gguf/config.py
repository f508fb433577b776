"""config.json out of the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.header import Gguf
from moeinf.gguf.metadata import Metadata, numbers_of

Config = dict[str, Any]
_SIGMOID = 2  # of expert_gating_func, which is softmax (1) elsewhere


def config_of(gguf: Gguf) -> Config:
    """The config.json from which the model was converted, as far as it changes the mathematics.

    Reads the factors of positions, where there are such tensors, from the file. Raises UnsupportedModelError for an
    architecture that moeinf does not run, CheckpointError for metadata that are missing or damaged.
    """
    kind = gguf.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"{gguf.where} is no model but of type {kind!r:.50}; name the model's own file")
    m = Metadata(gguf)
    make = ARCHITECTURES.get(m.architecture)
    if make is None or not m.count("expert_count", 0):
        fault = "is not a Mixture-of-Experts model" if make is not None else "is not one that moeinf runs from a GGUF"
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(f"{gguf.where}: {m.architecture!r:.50} {fault} (those are {known}, with experts)")
    config = _common(m) | make(m) | _ids(gguf)
    m.refuse_others()
    return config


def _common(m: Metadata) -> Config:
    heads = m.count("attention.head_count")
    found = {
        "vocab_size": m.rows("token_embd.weight"),
        "hidden_size": m.count("embedding_length"),
        "num_hidden_layers": _num_layers(m),
        "num_attention_heads": heads,
        "num_key_value_heads": m.count("attention.head_count_kv", heads),
        "max_position_embeddings": m.count("context_length"),
        "rms_norm_eps": m.number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "attention_bias": m.has_in_a_layer("attn_q.bias"),
        "tie_word_embeddings": m.tensor("output.weight") is None,
        "num_experts_per_tok": m.count("expert_used_count"),
    }
    return found | _positions(m)


def _num_layers(m: Metadata) -> int:
    """Without those that guess tokens ahead, which lie behind the others."""
    layers, ahead = m.count("block_count"), m.count("nextn_predict_layers", 0)
    if not ahead < layers <= len(m.gguf.tensors):
        raise CheckpointError(
            f"{m.where}: {m.architecture}.block_count is {layers}; the file is damaged, fetch it again"
        )
    return layers - ahead


def _head_dim(m: Metadata) -> int:
    default = m.count("embedding_length") // max(1, m.count("attention.head_count"))
    key, value = (m.count(f"attention.{name}_length", default) for name in ("key", "value"))
    if key != value:
        raise UnsupportedModelError(f"{m.where}: keys of {key} and values of {value} numbers are not supported")
    return key


def _plain_heads(m: Metadata) -> Config:
    """head_dim, and how much of a head is rotated."""
    head_dim = _head_dim(m)
    rotated = m.count("rope.dimension_count", head_dim)
    return {"head_dim": head_dim} | (
        {} if rotated == head_dim else {"partial_rotary_factor": rotated / max(1, head_dim)}
    )


def _ids(gguf: Gguf) -> Config:
    found = {}
    for name, field in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        value = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(value) is int:
            found[field] = value
    return found


# ---- positions


def _positions(m: Metadata) -> Config:
    """rope_theta, and rope_scaling where the positions are others than plain ones."""
    scaling = _scaling(m)
    return {"rope_theta": m.number("rope.freq_base", 1e4), **({"rope_scaling": scaling} if scaling else {})}


def _scaling(m: Metadata) -> Config:
    factor = m.number("rope.scaling.factor", m.number("rope.scale_linear", 1.0))
    kind = m.text("rope.scaling.type", "none" if factor in (0.0, 1.0) else "linear")
    trained = m.count("rope.scaling.original_context_length", 0)
    attention = m.number("rope.scaling.attn_factor", 0.0) or m.number("rope.scaling.yarn_attn_factor", 0.0)
    names = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier")
    fast, slow, log_multiplier = (m.number(name, 0.0) for name in names)
    if m.number("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.rope.scaling.yarn_ext_factor is not supported")
    context = m.count("context_length")
    if m.tensor("rope_factors_long.weight") is not None or kind == "longrope":
        return _longrope(m, trained or context, attention)
    own = m.tensor("rope_freqs.weight")
    if own is not None:  # Llama 3.1's positions, of which the file has the factors of each pair
        factors = numbers_of(m.gguf, own)
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if kind == "none":
        return {}
    if kind == "linear":
        return {} if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.rope.scaling.type {kind!r:.50} is not supported")
    found: Config = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained or context}
    if attention:
        found["attention_factor"] = attention
    found |= {name: value for name, value in (("beta_fast", fast), ("beta_slow", slow)) if value}
    if log_multiplier:  # of DeepSeek, which publishes the same for mscale; the file has but one
        weight = round(log_multiplier * 10, 6)
        found |= {"mscale": weight, "mscale_all_dim": weight}
    return found


def _longrope(m: Metadata, trained: int, attention: float) -> Config:
    found: Config = {"rope_type": "longrope", "original_max_position_embeddings": trained}
    for name in ("short", "long"):
        tensor = m.tensor(f"rope_factors_{name}.weight")
        if tensor is None:
            raise UnsupportedModelError(
                f"{m.where} has no tensor 'rope_factors_{name}.weight', which its positions need"
            )
        found[f"{name}_factor"] = numbers_of(m.gguf, tensor)
    return found | ({"attention_factor": attention} if attention else {})


# ---- architectures


def _mixtral(m: Metadata) -> Config:
    window = m.count("attention.sliding_window", 0)
    return _plain_heads(m) | {
        "model_type": "mixtral",
        "num_local_experts": m.count("expert_count"),
        "intermediate_size": _expert_width(m),
        "sliding_window": window or None,
    }


def _expert_width(m: Metadata) -> int:
    """Files have it under either name; the tensors are right."""
    m.count("feed_forward_length", 0), m.count("expert_feed_forward_length", 0)
    for name in ("ffn_up_exps", "ffn_gate_up_exps"):
        for tensor in m.gguf.tensors.values():
            if tensor.name.endswith(f".{name}.weight") and len(tensor.shape) == 3:
                return tensor.shape[1] // (2 if "gate" in name else 1)
    raise UnsupportedModelError(
        f"{m.where} has no tensor 'blk.<layer>.ffn_up_exps.weight': one that old versions of llama.cpp made has each "
        "expert apart; make it anew"
    )


def _shared_width(m: Metadata) -> int:
    return next(
        (t.shape[0] for t in m.gguf.tensors.values() if t.name.endswith(".ffn_up_shexp.weight")),
        m.count("expert_shared_feed_forward_length", 0),
    )


def _dense_layers(m: Metadata) -> list[int]:
    """The layers that have a plain block instead of experts."""
    return [i for i in range(_num_layers(m)) if m.tensor(f"blk.{i}.ffn_gate_inp.weight") is None]


def _qwen(m: Metadata, model_type: str, *, normalised: bool) -> Config:
    m.count("expert_shared_feed_forward_length", 0), m.count("expert_shared_count", 0)
    _refuse_unless(m, m.number("expert_weights_scale", 1.0) in (0.0, 1.0), "expert_weights_scale")
    _refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    return {
        "model_type": model_type,
        "num_experts": m.count("expert_count"),
        "norm_topk_prob": m.flag("expert_weights_norm", normalised),
        "moe_intermediate_size": _expert_width(m),
        "intermediate_size": m.count("feed_forward_length", 0),
        "mlp_only_layers": _dense_layers(m),
    }


def _refuse_unless(m: Metadata, sound: bool, name: str) -> None:
    if not sound:
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.{name} = {m.get(name)!r:.50} is not supported")


def _qwen2_moe(m: Metadata) -> Config:
    head_dim = _head_dim(m)
    _refuse_unless(m, m.count("rope.dimension_count", head_dim) == head_dim, "rope.dimension_count")
    return _qwen(m, "qwen2_moe", normalised=False) | {
        "head_dim": head_dim,
        "attention_bias": False,
        "qkv_bias": m.has_in_a_layer("attn_q.bias"),
        "shared_expert_intermediate_size": _shared_width(m),
    }


def _qwen3_moe(m: Metadata) -> Config:
    return _plain_heads(m) | _qwen(m, "qwen3_moe", normalised=True)


def _delta_net(m: Metadata) -> Config:
    """What Qwen3-Next and Qwen3.5 say of their recurrent layers."""
    values, inner = m.count("ssm.time_step_rank"), m.count("ssm.inner_size")
    if not values or inner % values:
        raise UnsupportedModelError(f"{m.where}: ssm.inner_size {inner} is no whole number of {values} heads")
    every, said = m.count("full_attention_interval", 4), m.values("attention.recurrent_layers")
    if said is None:
        recurrent = [bool((i + 1) % max(1, every)) for i in range(_num_layers(m))]
    else:
        recurrent = [bool(each) for each in said[: _num_layers(m)]]
    return {
        "linear_conv_kernel_dim": m.count("ssm.conv_kernel"),
        "linear_key_head_dim": m.count("ssm.state_size"),
        "linear_num_key_heads": m.count("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
        "full_attention_interval": every,
        "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
        "shared_expert_intermediate_size": _shared_width(m),
    }


def _qwen3_next(m: Metadata) -> Config:
    apart = not m.has_in_a_layer("ssm_in.weight")
    found = _plain_heads(m) | _qwen(m, "qwen3_next", normalised=True) | _delta_net(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | ({"stacked_projections": False} if apart else {})


def _qwen3_5_moe(m: Metadata) -> Config:
    found = _plain_heads(m) | _qwen(m, "qwen3_5_moe", normalised=True) | _delta_net(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found


def _grouped(m: Metadata) -> Config:
    """The routing of DeepSeek's blocks, which GLM-4.5 has too."""
    m.count("expert_shared_feed_forward_length", 0)
    return {
        "n_routed_experts": m.count("expert_count"),
        "n_shared_experts": m.count("expert_shared_count", 0),
        "n_group": m.count("expert_group_count", 1) or 1,
        "topk_group": m.count("expert_group_used_count", 1) or 1,
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "first_k_dense_replace": m.count("leading_dense_block_count", 0),
        "moe_intermediate_size": _expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
        "num_nextn_predict_layers": m.count("nextn_predict_layers", 0),
    }


def _deepseek(m: Metadata) -> Config:
    corrected = m.has_in_a_layer("exp_probs_b.bias")
    gating = m.count("expert_gating_func", 0) or (_SIGMOID if corrected else 1)
    _refuse_unless(m, gating == (_SIGMOID if corrected else 1), "expert_gating_func")
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
    _refuse_unless(m, m.count("expert_gating_func", _SIGMOID) in (0, _SIGMOID), "expert_gating_func")
    found = _plain_heads(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | _grouped(m) | {"model_type": "glm4_moe", "use_qk_norm": m.has_in_a_layer("attn_q_norm.weight")}


def _gpt_oss(m: Metadata) -> Config:
    pattern = m.values("attention.sliding_window_pattern")
    slides = pattern or [i % 2 == 0 for i in range(_num_layers(m))]
    found = _plain_heads(m) | {
        "model_type": "gpt_oss",
        "num_local_experts": m.count("expert_count"),
        "intermediate_size": _expert_width(m),
        "sliding_window": m.count("attention.sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides[: _num_layers(m)]],
        "swiglu_limit": m.number("swiglu_clamp_exp", 7.0),
    }
    positions = _positions(m)
    if "rope_scaling" in positions:  # as every gpt-oss is published, and no file says
        return found | {"rope_scaling": positions["rope_scaling"] | {"truncate": False}}
    return found | {"rope_scaling": {"rope_type": "default"}}


def _granite_moe(m: Metadata) -> Config:
    if m.has_in_a_layer("ffn_up_shexp.weight"):
        raise UnsupportedModelError(f"{m.where}: Granite with shared experts (granitemoeshared) is not supported")
    m.count("expert_shared_feed_forward_length", 0)
    return _plain_heads(m) | {
        "model_type": "granitemoe",
        "num_local_experts": m.count("expert_count"),
        "intermediate_size": _expert_width(m),
        "embedding_multiplier": m.number("embedding_scale", 1.0),
        "residual_multiplier": m.number("residual_scale", 1.0),
        "attention_multiplier": m.number("attention.scale", _head_dim(m) ** -0.5),
        "logits_scaling": m.number("logit_scale", 1.0),
    }


def _olmoe(m: Metadata) -> Config:
    clip = m.number("attention.clamp_kqv", 0.0)
    return _plain_heads(m) | {
        "model_type": "olmoe",
        "num_experts": m.count("expert_count"),
        "intermediate_size": _expert_width(m),
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "clip_qkv": clip or None,
    }


def _phimoe(m: Metadata) -> Config:
    window = m.count("attention.sliding_window", 0)
    return _plain_heads(m) | {
        "model_type": "phimoe",
        "num_local_experts": m.count("expert_count"),
        "intermediate_size": _expert_width(m),
        "lm_head_bias": m.tensor("output.bias") is not None,
        "sliding_window": window or None,
    }


def _arctic(m: Metadata) -> Config:
    return _plain_heads(m) | {
        "model_type": "arctic",
        "num_local_experts": m.count("expert_count"),
        "intermediate_size": _expert_width(m),
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
