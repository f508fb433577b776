"""What each architecture of GGUF files says of itself, as the config.json of its family."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.common import (
    Config,
    dense_layers_of,
    expert_width,
    experts_of,
    granite_multipliers,
    grouped_routing,
    head_dim_of,
    num_layers_of,
    plain_heads,
    positions_of,
    refuse_unless,
    refuse_unless_sigmoid,
    shared_width,
)
from moeinf.gguf.metadata import Metadata, numbers_of


def _mixtral(m: Metadata) -> Config:
    window = m.count("attention.sliding_window", 0)
    return plain_heads(m) | {
        "model_type": "mixtral",
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
        "sliding_window": window or None,
    }


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
        "mlp_only_layers": dense_layers_of(m),
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


def _qwen4_exp(m: Metadata) -> Config:
    recurrent = _delta_net(m)
    blocks = m.values("attention.compress_ratios") or []
    kinds = zip(blocks, recurrent["layer_types"], strict=False)
    attending = {size for size, kind in kinds if kind == "full_attention"}
    if len(attending) != 1 or 0 in attending:
        raise UnsupportedModelError(
            f"{m.where}: {m.architecture}.attention.compress_ratios {blocks!s:.100} is not one size of blocks in all "
            "layers with attention; make the file anew of the published checkpoint"
        )
    found = plain_heads(m) | _qwen(m, "qwen4_exp", normalised=True) | recurrent | _ngrams(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | {
        "output_gate_type": "sigmoid",  # as published: no file says
        "hc_count": m.count("hyper_connection.count"),
        "hc_lowrank": m.count("hyper_connection.low_rank"),
        "indexer_kv_heads": 1,
        "indexer_n_heads": m.count("attention.indexer.head_count"),
        "indexer_head_dim": m.count("attention.indexer.key_length"),
        "indexer_budget": m.count("attention.indexer.top_k"),
        "indexer_compress_ratio": attending.pop(),
    }


def _ngrams(m: Metadata) -> Config:
    """The one table of n-grams, which lies whole in the file, and the numbers that choose its rows."""
    names = ("ple.layers", "ple.head_vocab_sizes", "ple.head_offsets", "ple.layer_multipliers")
    layers, of_heads, offsets, multipliers = (_whole_numbers(m, name) for name in names)
    if not layers:
        return {"ple_layer_ids": []}
    table = m.tensor("per_layer_token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(f"{m.where} has no table 'per_layer_token_embd.weight'; it is no whole model")
    rows, row = table.shape
    refuse_unless(m, m.count("embedding_length_per_layer_input") == row, "embedding_length_per_layer_input")
    m.count("ple.image_token_id", 0)  # of images
    size, heads = m.count("ple.ngram_size"), m.count("ple.heads_per_ngram")
    if len(layers) != 1 or offsets != list(accumulate(of_heads, initial=0))[:-1] or sum(of_heads) > rows:
        raise UnsupportedModelError(
            f"{m.where}: {m.architecture}.ple is not of one layer, with its heads one behind the other in a table of "
            f"{rows} rows, which is not supported"
        )
    end, ends = m.count("ple.eos_token_id"), m.gguf.metadata.get("tokenizer.ggml.eos_token_id")
    return {
        "ple_layer_ids": [layer + 1 for layer in layers],
        "ple_embed_dim": row * (size - 1) * heads,
        "ple_conv_kernel_size": m.count("ple.conv_kernel"),
        "ngram_size": size,
        "heads_per_ngram": heads,
        "ngram_heads_vocab_sizes": [of_heads],
        "layer_multipliers": [multipliers],
        "make_ngram_vocab_size_divisible_by": rows,
        "split_ngram_parts": 1,
        "eos_token_id": [end, ends] if type(ends) is int and ends != end else end,
    }


def _whole_numbers(m: Metadata, name: str) -> list[int]:
    """A list that is none of layers; [] where there is none."""
    found = m.values(name) or []
    if not all(type(number) is int for number in found):
        raise CheckpointError(f"{m.where}: {m.architecture}.{name} must be whole numbers; the file is damaged")
    return found


def _glm4_moe(m: Metadata) -> Config:
    refuse_unless_sigmoid(m)
    found = plain_heads(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return (
        found | grouped_routing(m) | {"model_type": "glm4_moe", "use_qk_norm": m.has_in_a_layer("attn_q_norm.weight")}
    )


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
    shared = shared_width(m)
    return (
        plain_heads(m)
        | granite_multipliers(m)
        | {"model_type": "granitemoe", "num_local_experts": experts_of(m), "intermediate_size": expert_width(m)}
        | ({"model_type": "granitemoeshared", "shared_intermediate_size": shared} if shared else {})
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


def _qwen3_vl_moe(m: Metadata) -> Config:
    m.count("n_deepstack_layers", 0)  # of images
    return plain_heads(m) | _qwen(m, "qwen3_vl_moe", normalised=True)


def _dots1(m: Metadata) -> Config:
    refuse_unless_sigmoid(m)
    return plain_heads(m) | grouped_routing(m) | {"model_type": "dots1", "sliding_window": None}


def _minimax_m2(m: Metadata) -> Config:
    refuse_unless_sigmoid(m)
    head_dim = head_dim_of(m)
    return {
        "model_type": "minimax_m2",
        "head_dim": head_dim,
        "rotary_dim": m.count("rope.dimension_count", head_dim),
        "num_local_experts": experts_of(m),
        "intermediate_size": expert_width(m),
    }


def _minimax_m3(m: Metadata) -> Config:
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


def _ernie4_5_moe(m: Metadata) -> Config:
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


def _exaone_moe(m: Metadata) -> Config:
    refuse_unless_sigmoid(m)
    layers, dense = range(num_layers_of(m)), dense_layers_of(m)
    found = grouped_routing(m)
    experts, shared = found.pop("n_routed_experts"), found.pop("n_shared_experts")
    slides = m.values("attention.sliding_window_pattern") or [(i + 1) % 4 != 0 for i in layers]
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


def _gemma4(m: Metadata) -> Config:
    layers = range(num_layers_of(m))
    slides = m.values("attention.sliding_window_pattern") or [(i + 1) % 6 != 0 for i in layers]
    sliding, whole = (next((i for i in layers if bool(slides[i]) == kind), None) for kind in (True, False))
    heads = m.values("attention.head_count_kv") or [m.count("attention.head_count_kv")] * len(layers)
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
    refuse_unless(m, all(each == 1.0 for each in factors[:turned]) and min(factors) > 0, "rope.freq_base")
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
        "enable_moe_block": True,
        "expert_factors": False,
        "num_experts": experts_of(m),
        "top_k_experts": m.count("expert_used_count"),
        "moe_intermediate_size": expert_width(m),
        "intermediate_size": m.count("feed_forward_length"),
        "num_kv_shared_layers": m.count("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": m.count("embedding_length_per_layer_input", 0),
    }


ARCHITECTURES: dict[str, Callable[[Metadata], Config]] = {
    "llama": _mixtral,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "qwen3vlmoe": _qwen3_vl_moe,
    "qwen3next": _qwen3_next,
    "qwen35moe": _qwen3_5_moe,
    "qwen4exp": _qwen4_exp,
    "glm4moe": _glm4_moe,
    "dots1": _dots1,
    "minimax-m2": _minimax_m2,
    "minimax-m3": _minimax_m3,
    "ernie4_5-moe": _ernie4_5_moe,
    "exaone-moe": _exaone_moe,
    "gemma4": _gemma4,
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite_moe,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "arctic": _arctic,
}
