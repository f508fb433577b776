"""What files say of Qwen's architectures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.configs.common import (
    dense_layers_of,
    expert_width,
    experts_of,
    head_dim_of,
    num_layers_of,
    plain_heads,
    refuse_unless,
    shared_width,
    whole_numbers,
)
from moeinf.gguf.metadata import Metadata
from moeinf.types import JsonObject


def _qwen(m: Metadata, model_type: str, *, normalised: bool) -> JsonObject:
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


def _qwen2_moe(m: Metadata) -> JsonObject:
    head_dim = head_dim_of(m)
    refuse_unless(m, m.count("rope.dimension_count", head_dim) == head_dim, "rope.dimension_count")
    return _qwen(m, "qwen2_moe", normalised=False) | {
        "head_dim": head_dim,
        "attention_bias": False,
        "attention_out_bias": False,
        "qkv_bias": m.has_in_a_layer("attn_q.bias"),
        "shared_expert_intermediate_size": shared_width(m),
    }


def _qwen3_moe(m: Metadata) -> JsonObject:
    return plain_heads(m) | _qwen(m, "qwen3_moe", normalised=True)


def _grove_moe(m: Metadata) -> JsonObject:
    """Where the file says nothing of small experts, the numbers of published checkpoints."""
    return _qwen3_moe(m) | {
        "model_type": "grove_moe",
        "num_experts_per_group": m.count("experts_per_group", 2),
        "parallel_expert_intermediate_size": m.count("expert_chunk_feed_forward_length", 128),
        "expert_group_scale": m.number("expert_group_scale", 0.05),
        "small_experts_apart": True,
    }


def _delta_net(m: Metadata) -> JsonObject:
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


def _qwen3_next(m: Metadata) -> JsonObject:
    apart = not m.has_in_a_layer("ssm_in.weight")
    found = plain_heads(m) | _qwen(m, "qwen3_next", normalised=True) | _delta_net(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found | ({"stacked_projections": False} if apart else {})


def _qwen3_5_moe(m: Metadata) -> JsonObject:
    found = plain_heads(m) | _qwen(m, "qwen3_5_moe", normalised=True) | _delta_net(m)
    found.setdefault("partial_rotary_factor", 1.0)
    return found


def _qwen4_exp(m: Metadata) -> JsonObject:
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


def _ngrams(m: Metadata) -> JsonObject:
    """The one table of n-grams, which lies whole in the file, and the numbers that choose its rows."""
    names = ("ple.layers", "ple.head_vocab_sizes", "ple.head_offsets", "ple.layer_multipliers")
    layers, of_heads, offsets, multipliers = (whole_numbers(m, name) for name in names)
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


def _qwen3_vl_moe(m: Metadata) -> JsonObject:
    m.count("n_deepstack_layers", 0)  # of images
    return plain_heads(m) | _qwen(m, "qwen3_vl_moe", normalised=True)


QWEN: dict[str, Callable[[Metadata], JsonObject]] = {
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "grovemoe": _grove_moe,
    "qwen3vlmoe": _qwen3_vl_moe,
    "qwen3next": _qwen3_next,
    "qwen35moe": _qwen3_5_moe,
    "qwen4exp": _qwen4_exp,
}
