"""A GGUF file of DeepSeek-V4.1, with the names and metadata that public converters write (ggml-org/llama.cpp 28696).

The converter of the record knows none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.layers.streams.engram import EngramConfig
from tests.support.checkpoints import random_tensors
from tests.support.configs.deepseek_v41 import DEEPSEEK_V41

TEXT = DEEPSEEK_V41["text_config"]
NAMES = {  # of a layer
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.wk.weight": "indexer.attn_k.weight",
    "attn.indexer.k_norm.weight": "indexer.k_norm.weight",
    "engram.embed.weight": "engram_embd.weight",
    "engram.wkv.weight": "engram_wkv.weight",
    "engram.q_weight": "engram_q.weight",
    "engram.k_weight": "engram_k.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
    **{f"hc_{part}_{name}": f"hc_{part}_{name}.weight" for part in ("attn", "ffn") for name in ("fn", "base", "scale")},
}
OUTER = {"embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def metadata() -> dict[str, Any]:
    tables = EngramConfig.of(Fields(TEXT), TEXT["vocab_size"], TEXT["num_hidden_layers"])
    assert tables is not None
    offsets = [sum(primes[:head]) for primes in tables.primes for head in range(len(primes))]
    yarn = TEXT["rope_scaling"]
    return {
        "block_count": TEXT["num_hidden_layers"],
        "context_length": TEXT["max_position_embeddings"],
        "embedding_length": TEXT["hidden_size"],
        "attention.head_count": TEXT["num_attention_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": TEXT["head_dim"],
        "attention.value_length": TEXT["head_dim"],
        "attention.layer_norm_rms_epsilon": TEXT["rms_norm_eps"],
        "attention.q_lora_rank": TEXT["q_lora_rank"],
        "attention.output_group_count": TEXT["o_groups"],
        "attention.output_lora_rank": TEXT["o_lora_rank"],
        "attention.sliding_window": TEXT["sliding_window"],
        "attention.compress_ratios": TEXT["compress_ratios"],
        "attention.compress_rope_freq_base": TEXT["compress_rope_theta"],
        "attention.indexer.head_count": TEXT["index_n_heads"],
        "attention.indexer.key_length": TEXT["index_head_dim"],
        "attention.indexer.top_k": TEXT["index_topk"],
        "attention.kv_source_layer_ids": TEXT["kv_source_layer_ids"],
        "attention.index_source_layer_ids": TEXT["index_source_layer_ids"],
        "attention.candidate_source_layer_id": TEXT["candidate_source_layer_id"],
        "attention.candidate_topk_blocks": TEXT["candidate_topk_blocks"],
        "attention.candidate_block_size": TEXT["candidate_block_size"],
        "rope.dimension_count": TEXT["qk_rope_head_dim"],
        "rope.freq_base": TEXT["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(yarn["factor"]),
        "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(yarn["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(yarn["beta_slow"]),
        "hyper_connection.count": TEXT["hc_mult"],
        "hyper_connection.sinkhorn_iterations": TEXT["hc_sinkhorn_iters"],
        "hyper_connection.epsilon": TEXT["hc_eps"],
        "hash_layer_count": 0,
        "nextn_predict_layers": 1,
        "expert_count": TEXT["n_routed_experts"],
        "expert_used_count": TEXT["num_experts_per_tok"],
        "expert_shared_count": 1,
        "expert_feed_forward_length": TEXT["moe_intermediate_size"],
        "expert_gating_func": 4,
        "expert_weights_norm": True,
        "expert_weights_scale": TEXT["routed_scaling_factor"],
        "swiglu_clamp_exp": [TEXT["swiglu_limit"]] * TEXT["num_hidden_layers"],
        "swiglu_clamp_shexp": [TEXT["swiglu_limit"]] * TEXT["num_hidden_layers"],
        "engram.layer_ids": TEXT["engram_layer_ids"],
        "engram.head_count": TEXT["engram_n_heads"],
        "engram.key_length": TEXT["engram_head_dim"],
        "engram.max_ngram_size": TEXT["engram_max_ngram_size"],
        "engram.primes": [prime for primes in tables.primes for prime in primes],
        "engram.offsets": offsets,
        "engram.multipliers": [number for numbers in tables.multipliers for number in numbers],
        "engram.token_map": TEXT["engram_token_map"],
        "engram.pad_id": TEXT["engram_token_map"][TEXT["engram_pad_token_id"]],
    }


def named(name: str) -> str:
    found = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
    return f"blk.{found[1]}.{NAMES[found[2]]}" if found else OUTER[name]


def write_deepseek41(
    path: Path, changed: Mapping[str, Any], *, without: str = "", more: Mapping[str, np.ndarray] | None = None
) -> Path:
    """changed: metadata, None to leave one out; without: a tensor that is left out; more: further ones."""
    writer = gguf.GGUFWriter(path, "deepseek41")
    for name, value in (metadata() | dict(changed)).items():
        if value is None:
            continue
        kind = gguf.GGUFValueType
        if isinstance(value, list):
            of = kind.FLOAT32 if isinstance(value[0], float) else kind.UINT64 if max(value) >> 31 else kind.INT32
            writer.add_key_value(f"deepseek41.{name}", value, kind.ARRAY, sub_type=of)
        else:
            by_type = {bool: kind.BOOL, int: kind.UINT32, float: kind.FLOAT32, str: kind.STRING}
            writer.add_key_value(f"deepseek41.{name}", value, by_type[type(value)])
    plan, experts = family_of(DEEPSEEK_V41).tensors, dict[str, list[np.ndarray]]()
    for name, tensor in random_tensors(DEEPSEEK_V41).items():
        if name in plan.dense:
            if named(name) != without:
                _add(writer, named(name), tensor.float().numpy())
            continue
        found = re.fullmatch(r"layers\.(\d+)\.ffn\.experts\.\d+\.w(\d)\.weight", name)
        assert found is not None
        part = {"1": "gate", "2": "down", "3": "up"}[found[2]]
        experts.setdefault(f"blk.{found[1]}.ffn_{part}_exps.weight", []).append(tensor.float().numpy())
    for name, each in experts.items():
        _add(writer, name, np.stack(each))
    for name, numbers in (more or {}).items():
        writer.add_tensor(name, numbers)
    writer.add_tensor("blk.0.exp_probs_b_vl.bias", np.ones(8, np.float32))  # of tokens of pictures
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
    if is_whole(name, values.ndim):
        writer.add_tensor(name, values)
    else:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def is_whole(name: str, rank: int) -> bool:
    """Whether a tensor is in f32, also in the published checkpoint."""
    return rank == 1 or re.search(r"hc_|engram[._][qk][._]weight", name) is not None
