"""What files say of architectures with latent attention: DeepSeek's, and those made after them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.configs.common import (
    SIGMOID,
    SQRT_SOFTPLUS,
    counts_of,
    expert_width,
    experts_of,
    grouped_routing,
    head_dim_of,
    limits_of,
    mlps_of,
    num_layers_of,
    positions_of,
    refuse_unless,
    refuse_unless_sigmoid,
    routing_is_corrected,
    shared_width,
    slides_of,
    whole_numbers,
)
from moeinf.gguf.metadata import Metadata
from moeinf.types import JsonObject

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"


def _attention(m: Metadata) -> JsonObject:
    # "mla": of a head as published. Files from before have these under the plain names.
    plain_key, plain_value = m.count("attention.key_length"), m.count("attention.value_length", 0)
    rotated = m.count("rope.dimension_count")
    return {
        "num_key_value_heads": m.count("attention.head_count"),
        "q_lora_rank": m.count("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": m.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": m.count("attention.key_length_mla", plain_key) - rotated,
        "v_head_dim": m.count("attention.value_length_mla", plain_value),
        "attention_bias": m.has_in_a_layer("attn_kv_a_mqa.bias"),
    }


def _deepseek(m: Metadata) -> JsonObject:
    corrected = routing_is_corrected(m)
    gating = m.count("expert_gating_func", 0) or (SIGMOID if corrected else 1)
    refuse_unless(m, gating == (SIGMOID if corrected else 1), "expert_gating_func")
    found = _attention(m) | grouped_routing(m)
    if corrected:
        return found | {"model_type": "deepseek_v3", "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    groups = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return found | {"model_type": "deepseek_v2", "scoring_func": "softmax", "topk_method": groups}


def _indexed(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    found = {
        "model_type": "deepseek_v32",
        "mlp_layer_types": mlps_of(m),
        "index_n_heads": m.count("attention.indexer.head_count"),
        "index_head_dim": m.count("attention.indexer.key_length"),
        "index_topk": m.count("attention.indexer.top_k"),
    }
    return _attention(m) | grouped_routing(m) | found


def _dots3_note(m: Metadata) -> JsonObject:
    """Norms of latents have the factor by which the published code multiplies these."""
    refuse_unless_sigmoid(m)
    layers = range(num_layers_of(m))
    heads, slides = counts_of(m, "attention.head_count"), slides_of(m, lambda i: False)
    rotated = m.count("rope.dimension_count")
    for name in ("head_count_kv", "key_length", "value_length", "key_length_swa", "value_length_swa", "indexer.types"):
        m.values(f"attention.{name}") or m.get(f"attention.{name}")  # said again by others, or by the tensors
    own = {sees: {heads[i] for i in layers if slides[i] != sees} for sees in (True, False)}
    refuse_unless(m, all(len(each) == 1 for each in own.values()), "attention.head_count")
    (whole,), (few,) = own[True], own[False]
    full = {"rope_type": "default"} | positions_of(m).get("rope_scaling", {})
    indexed = [m.tensor(f"blk.{i}.indexer.attn_k.weight") is not None for i in layers]
    kinds = ["sliding_attention" if slides[i] else f"{('full', 'indexed')[indexed[i]]}_attention" for i in layers]
    others = {kind: full | {"rope_theta": m.number("rope.freq_base", 1e4)} for kind in kinds}
    key, key_swa = (m.count(f"attention.key_length_mla{end}") for end in ("", "_swa"))
    shared = m.count("expert_shared_count", 0)
    return grouped_routing(m) | {
        "model_type": "dots3_note",
        "latents_scaled": False,
        "num_attention_heads": whole,
        "num_key_value_heads": whole,
        "q_lora_rank": m.count("attention.q_lora_rank"),
        "kv_lora_rank": m.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": m.count("attention.value_length_mla"),
        "layer_types": kinds,
        "mlp_layer_types": mlps_of(m),
        "sliding_window": m.count("attention.sliding_window"),
        "swa_num_attention_heads": few,
        "swa_num_key_value_heads": few,
        "swa_q_lora_rank": m.count("attention.q_lora_rank"),
        "swa_kv_lora_rank": m.count("attention.kv_lora_rank_swa"),
        "swa_head_dim": key_swa,
        "swa_qk_nope_head_dim": key_swa - rotated,
        "swa_v_head_dim": m.count("attention.value_length_mla_swa"),
        "shared_experts_intermediate_size": shared_width(m) // max(1, shared),
        "index_n_heads": m.count("attention.indexer.head_count"),
        "index_head_dim": m.count("attention.indexer.key_length"),
        "index_topk": m.count("attention.indexer.top_k"),
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": others
        | {"sliding_attention": {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa")}},
    }


def _streams(m: Metadata) -> JsonObject:
    """Hyper-connections."""
    return {"hc_mult": m.count("hyper_connection.count"), "hc_eps": m.number("hyper_connection.epsilon")}


def _limit(m: Metadata) -> float:
    """Of all experts' activations, shared ones or not."""
    limit = m.number("swiglu_clamp_exp")
    refuse_unless(m, m.number("swiglu_clamp_shexp", limit) == limit, "swiglu_clamp_shexp")
    return limit


def _with_window(m: Metadata) -> JsonObject:
    """What DeepSeek-V4's and V4.1's files have in common."""
    refuse_unless(m, m.count("expert_gating_func") == SQRT_SOFTPLUS, "expert_gating_func")
    refuse_unless(m, m.flag("expert_weights_norm", True), "expert_weights_norm")
    refuse_unless(m, m.count("expert_shared_count") == 1, "expert_shared_count")
    refuse_unless(m, m.count("expert_group_count", 1) < 2, "expert_group_count")
    m.count("embedding_length_out", 0), m.count("expert_group_used_count", 1)
    return _streams(m) | {
        "head_dim": head_dim_of(m),
        "qk_rope_head_dim": m.count("rope.dimension_count"),
        "q_lora_rank": m.count("attention.q_lora_rank"),
        "o_groups": m.count("attention.output_group_count"),
        "o_lora_rank": m.count("attention.output_lora_rank"),
        "sliding_window": m.count("attention.sliding_window"),
        "compress_rope_theta": m.number("attention.compress_rope_freq_base"),
        "index_n_heads": m.count("attention.indexer.head_count"),
        "index_head_dim": m.count("attention.indexer.key_length"),
        "index_topk": m.count("attention.indexer.top_k"),
        "hc_sinkhorn_iters": m.count("hyper_connection.sinkhorn_iterations"),
        "n_routed_experts": experts_of(m),
        "moe_intermediate_size": expert_width(m),
        "routed_scaling_factor": m.number("expert_weights_scale"),
        "swiglu_limit": _limit(m),
    }


def _deepseek4(m: Metadata) -> JsonObject:
    layers, ratios = range(num_layers_of(m)), m.values("attention.compress_ratios") or []
    chooses = [m.tensor(f"blk.{i}.indexer.attn_q_b.weight") is not None for i in layers]
    rates = {
        _SPARSE: {ratio for ratio, each in zip(ratios, chooses, strict=False) if each},
        _HEAVY: {ratio for ratio, each in zip(ratios, chooses, strict=False) if ratio and not each},
    }
    sound = len(ratios) >= len(layers) and all(len(each) < 2 and 0 not in each for each in rates.values())
    if not sound:
        raise UnsupportedModelError(
            f"{m.where}: {m.architecture}.attention.compress_ratios {ratios!s:.100} is not a number for each of "
            f"{len(layers)} layers, with one of layers that have an indexer and one of the others, or 0"
        )
    kinds = [
        _SPARSE if each else _HEAVY if ratio else "sliding_attention"
        for ratio, each in zip(ratios, chooses, strict=False)
    ]
    return _with_window(m) | {
        "model_type": "deepseek_v4",
        "layer_types": kinds,
        "compress_rates": {kind: each.pop() for kind, each in rates.items() if each},
        "num_hash_layers": m.count("hash_layer_count"),
    }


def _deepseek41(m: Metadata) -> JsonObject:
    """Which layers make entries and choose them is seen in the tensors; candidates of which a file says nothing are as
    published."""
    layers = range(num_layers_of(m))
    refuse_unless(m, m.count("hash_layer_count", 0) == 0, "hash_layer_count")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        m.values(f"attention.{name}")
    sources, choosing = (
        [i for i in layers if m.tensor(f"blk.{i}.{name}.weight") is not None]
        for name in ("attn_compressor_kv", "indexer.attn_q_b")
    )
    said = m.get("attention.candidate_source_layer_id")
    found = {
        "model_type": "deepseek_v41",
        "compress_ratios": m.values("attention.compress_ratios"),
        "kv_source_layer_ids": sources,
        "index_source_layer_ids": choosing,
        "candidate_source_layer_id": max(sources, default=-1) if said is None else said,
        "candidate_topk_blocks": m.count("attention.candidate_topk_blocks", 2048),
        "candidate_block_size": m.count("attention.candidate_block_size", 8),
    }
    return _with_window(m) | found | _engram(m)


def _engram(m: Metadata) -> JsonObject:
    """Tables of n-grams, and the numbers that choose their rows."""
    layers = whole_numbers(m, "engram.layer_ids")
    if not layers:
        return {"engram_layer_ids": []}
    tables = [m.tensor(f"blk.{i}.engram_embd.weight") for i in layers]
    size, heads, kinds = (
        m.count("engram.max_ngram_size"),
        m.count("engram.head_count"),
        whole_numbers(m, "engram.token_map"),
    )
    pad = m.count("engram.pad_id")  # as the map has it
    if None in tables or pad not in kinds:
        raise CheckpointError(
            f"{m.where}: {m.architecture}.engram names a table, or a kind of tokens ({pad}), that is not there; take "
            "another file"
        )
    columns = (size - 1) * heads
    primes, offsets = (_cut(whole_numbers(m, f"engram.{name}"), columns) for name in ("primes", "offsets"))
    refuse_unless(m, offsets == [[*accumulate(each, initial=0)][:-1] for each in primes], "engram.offsets")
    return {
        "engram_layer_ids": layers,
        "engram_num_embeddings": [table.shape[0] for table in tables if table is not None],
        "engram_max_ngram_size": size,
        "engram_n_heads": heads,
        "engram_head_dim": m.count("engram.key_length"),
        "engram_primes": primes,
        "engram_multipliers": _cut(whole_numbers(m, "engram.multipliers"), size),
        "engram_token_map": kinds,
        "engram_compressed_vocab_size": max(kinds) + 1,
        "engram_pad_token_id": kinds.index(pad),
    }


def _cut(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def _glm_dsa(m: Metadata) -> JsonObject:
    m.values("attention.indexer.types")  # which layers have one is seen in the tensors
    layers = range(num_layers_of(m))
    own = [m.tensor(f"blk.{i}.indexer.attn_k.weight") is not None for i in layers]
    kinds = ["full" if each else "shared" for each in own]
    return _indexed(m) | {"model_type": "glm_moe_dsa", "indexer_types": kinds}


def _glm5_next(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    refuse_unless(m, m.flag("attention.indexer.kpool_select_tail", True), "attention.indexer.kpool_select_tail")
    refuse_unless(m, m.number("attention.layer_norm_epsilon", 1e-6) == 1e-6, "attention.layer_norm_epsilon")
    m.values("attention.head_count_kv")  # 0 of layers with KDA
    m.values("attention.indexer.types")  # likewise; the others have one each
    layers, linear = range(num_layers_of(m)), _linear_layers(m)
    choosing = [i for i in layers if m.tensor(f"blk.{i}.indexer.attn_k.weight") is not None]
    if [i for i in layers if i not in linear] != choosing:
        raise UnsupportedModelError(
            f"{m.where}: layers with attention that have no indexer of their own are not supported"
        )
    bounded = "kda.gate_lower_bound" in m
    return (
        _attention(m)
        | grouped_routing(m)
        | _streams(m)
        | {
            "model_type": "glm5_next",
            "layer_types": ["linear_attention" if i in linear else "indexed_attention" for i in layers],
            "mlp_layer_types": mlps_of(m),
            "norm_topk_prob": m.flag("expert_weights_norm", True),
            "index_n_heads": m.count("attention.indexer.head_count"),
            "index_head_dim": m.count("attention.indexer.key_length"),
            "index_topk": m.count("attention.indexer.top_k"),
            "index_kpool": m.count("attention.indexer.kpool"),
            "linear_num_heads": _linear_heads(m),
            "linear_head_dim": m.count("kda.head_dim"),
            "linear_conv_kernel_dim": m.count("ssm.conv_kernel"),
            "linear_lower_bound": m.number("kda.gate_lower_bound") if bounded else None,
            "hc_sinkhorn_iters": m.count("hyper_connection.sinkhorn_iterations"),
            "swiglu_limit": _limit(m),
        }
    )


def _hy_v4(m: Metadata) -> JsonObject:
    refuse_unless_sigmoid(m)
    owners = m.values("attention.indexer.types")
    if owners is None:
        owners = [m.tensor(f"blk.{i}.indexer.attn_k.weight") is not None for i in range(num_layers_of(m))]
    if not owners or not owners[0]:
        raise UnsupportedModelError(f"{m.where}: layers that see all tokens, without an indexer, are not supported")
    limit = m.number("swiglu_clamp_exp", 0.0)
    refuse_unless(m, limit > 0, "swiglu_clamp_exp")
    return (
        _attention(m)
        | grouped_routing(m)
        | _streams(m)
        | {
            "model_type": "hy_v4",
            "mlp_layer_types": mlps_of(m),
            "index_n_heads": m.count("attention.indexer.head_count"),
            "index_head_dim": m.count("attention.indexer.key_length"),
            "index_topk": m.count("attention.indexer.top_k"),
            "indexer_types": ["full" if each else "shared" for each in owners[: num_layers_of(m)]],
            "hc_magnitude": m.number("hyper_connection.magnitude"),
            "swiglu_limit": limit,
        }
    )


def _mistral4(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("expert_gating_func", 1) in (0, 1), "expert_gating_func")
    positions = positions_of(m)
    rope = positions.get("rope_scaling", {"rope_type": "default"}) | {"rope_theta": positions["rope_theta"]}
    beta = m.number("attention.temperature_scale", 0.1)  # as published: the converter leaves it out
    trained = {"original_max_position_embeddings": m.count("context_length")} if beta else {}
    return (
        _attention(m)
        | grouped_routing(m)
        | {
            "model_type": "mistral4",
            "rope_theta": None,
            "rope_scaling": None,
            "rope_parameters": trained | rope | {"llama_4_scaling_beta": beta},
        }
    )


def _linear_layers(m: Metadata) -> list[int]:
    """Those with a recurrence instead of attention."""
    return [i for i in range(num_layers_of(m)) if m.tensor(f"blk.{i}.ssm_beta.weight") is not None]


def _linear_heads(m: Metadata) -> int:
    layers = _linear_layers(m)
    if not layers:
        raise UnsupportedModelError(
            f"{m.where} has no layer with linear attention (ssm_beta), which {m.architecture} needs"
        )
    return m.rows(f"blk.{layers[0]}.ssm_beta.weight")


def _delta_attention(m: Metadata) -> JsonObject:
    """Latent attention in some layers, KDA in the others."""
    m.values("attention.head_count_kv")  # 0 of layers with KDA
    found = _attention(m) | grouped_routing(m) | {"norm_topk_prob": m.flag("expert_weights_norm", True)}
    refuse_unless_sigmoid(m)
    return found | {"num_experts": found.pop("n_routed_experts")}


def _kimi_linear(m: Metadata) -> JsonObject:
    linear = _linear_layers(m)
    return _delta_attention(m) | {
        "model_type": "kimi_linear",
        "mlp_layer_types": mlps_of(m),
        "linear_attn_config": {
            "kda_layers": [i + 1 for i in linear],
            "full_attn_layers": [i + 1 for i in range(num_layers_of(m)) if i not in linear],
            "num_heads": _linear_heads(m),
            "head_dim": m.count("kda.head_dim"),
            "short_conv_kernel_size": m.count("ssm.conv_kernel"),
        },
    }


def _kimi_k3(m: Metadata) -> JsonObject:
    found = _kimi_linear(m)
    linear, bounded = _linear_layers(m), "kda.gate_lower_bound" in m
    inner = found["linear_attn_config"] | {
        "use_full_rank_gate": m.tensor(f"blk.{linear[0]}.ssm_g.weight") is not None,
        "gate_lower_bound": m.number("kda.gate_lower_bound") if bounded else None,
    }
    return found | {
        "model_type": "kimi_k3",
        "linear_attn_config": inner,
        "mla_use_output_gate": m.has_in_a_layer("attn_gate.weight"),
        "attn_res_block_size": m.count("attn_res.block_size") or None,
        "routed_expert_hidden_size": m.count("expert_latent_length", 0) or None,
        "latent_moe_use_norm": m.has_in_a_layer("ffn_routed_norm.weight"),
        "hidden_act": "situ",
        "activation_situ_beta": m.number("activation.situ_beta"),
        "activation_situ_linear_beta": max(m.number("activation.situ_linear_beta"), 0.0) or None,
    }


def _ling(m: Metadata) -> JsonObject:
    refuse_unless(m, m.flag("kda.safe_gate", True), "kda.safe_gate")
    linear, count = _linear_layers(m), num_layers_of(m)
    return _delta_attention(m) | {
        "model_type": "bailing_hybrid",
        "layer_types": ["linear_attention" if i in linear else "full_attention" for i in range(count)],
        "expert_swiglu_limit_list": limits_of(m, "swiglu_clamp_exp", count),
        "share_expert_swiglu_limit_list": limits_of(m, "swiglu_clamp_shexp", count),
        "linear_num_heads": _linear_heads(m),
        "head_dim": m.count("kda.head_dim"),
        "short_conv_kernel_size": m.count("ssm.conv_kernel"),
        "kda_safe_gate": True,
        "kda_lower_bound": m.number("kda.gate_lower_bound"),
    }


LATENT: dict[str, Callable[[Metadata], JsonObject]] = {
    "deepseek2": _deepseek,
    "deepseek32": _indexed,
    "dots3note": _dots3_note,
    "deepseek4": _deepseek4,
    "deepseek41": _deepseek41,
    "glm-dsa": _glm_dsa,
    "glm5-next": _glm5_next,
    "hy_v4": _hy_v4,
    "mistral4": _mistral4,
    "kimi-linear": _kimi_linear,
    "kimi-k3": _kimi_k3,
    "bailingmoe3": _ling,
}
