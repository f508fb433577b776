"""GGUF files of families that the converter of the record does not know, with the names and metadata that llama.cpp's
converter writes (conversion/grove.py, grok.py and dots3.py): a table for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from torch import Tensor

from tests.support.checkpoints import random_tensors
from tests.support.configs.dots3_note import DOTS3_NOTE
from tests.support.configs.grok import GROK
from tests.support.configs.grove_moe import GROVE_MOE
from tests.support.gguf_files import add_field

DOTS = DOTS3_NOTE | {  # with what the converter wants alike in all layers
    "swa_q_lora_rank": 28,
    "swa_head_dim": 22,
    "rope_theta": 8e7,
    "rms_norm_eps": 1e-5,
}
Config = Mapping[str, Any]
Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Written:
    """How a family is written. names: of tensors, without `.weight`; stacked: those of each expert, less its number.
    changed: what the converter makes of a tensor of a layer, where it does not just name it."""

    architecture: str
    config: Config
    metadata: Callable[[Config], dict[str, Any]]
    names: Mapping[str, str]
    stacked: Mapping[str, str]
    changed: Callable[[Config, int, str, np.ndarray], Numbers | None] = lambda c, layer, name, values: None


def common(c: Config) -> dict[str, Any]:
    return {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", 1e-6),
        "rope.freq_base": float(c["rope_theta"]),
        "expert_used_count": c["num_experts_per_tok"],
        "vocab_size": c["vocab_size"],
    }


def _grove(c: Config) -> dict[str, Any]:
    return common(c) | {
        "expert_count": c["num_experts"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_chunk_feed_forward_length": c["parallel_expert_intermediate_size"],
        "experts_per_group": c["num_experts_per_group"],
        "expert_group_scale": c["expert_group_scale"],
    }


def _grok(c: Config) -> dict[str, Any]:
    """Positions as the converter has them, which takes those of Grok-2 for yarn."""
    return common(c) | {
        "expert_count": c["num_local_experts"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "attn_logit_softcapping": c["attn_logit_softcapping"],
        "router_logit_softcapping": c["router_logit_softcapping"],
        "final_logit_softcapping": c["final_logit_softcapping"],
        "attention.temperature_length": c["attn_temperature_len"],
        "attention.output_scale": c["head_dim"] ** -0.5,
        "embedding_scale": c["embedding_multiplier_scale"],
        "logit_scale": c["output_multiplier_scale"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": c["scaling_factor"],
        "rope.scaling.original_context_length": c["original_max_position_embeddings"],
        "rope.scaling.yarn_ext_factor": 1.0,
        "rope.scaling.yarn_attn_factor": 1.0,
        "rope.scaling.yarn_beta_fast": 8.0,
        "rope.scaling.yarn_beta_slow": 1.0,
    }


def _slides(c: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in c["layer_types"]]


def _dots(c: Config) -> dict[str, Any]:
    slides, rotated = _slides(c), c["qk_rope_head_dim"]
    left = ("attention.key_length", "attention.value_length")
    found = {name: value for name, value in common(c).items() if name not in left}
    return found | {
        "rope.freq_base_swa": c["swa_rope_theta"],
        "rope.dimension_count": rotated,
        "attention.head_count": [c["swa_num_attention_heads"] if each else c["num_attention_heads"] for each in slides],
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": c["q_lora_rank"],
        **{
            f"attention.{name}{end}": value
            for end, of in (("", ""), ("_swa", "swa_"))
            for name, value in (
                ("kv_lora_rank", c[f"{of}kv_lora_rank"]),
                ("key_length", c[f"{of}kv_lora_rank"] + rotated),
                ("value_length", c[f"{of}kv_lora_rank"]),
                ("key_length_mla", c[f"{of}qk_nope_head_dim"] + rotated),
                ("value_length_mla", c[f"{of}v_head_dim"]),
            )
        },
        "attention.sliding_window": c["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.indexer.head_count": c["index_n_heads"],
        "attention.indexer.key_length": c["index_head_dim"],
        "attention.indexer.top_k": c["index_topk"],
        "attention.indexer.types": [not each for each in slides],
        "expert_count": c["n_routed_experts"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_weights_scale": c["routed_scaling_factor"],
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "leading_dense_block_count": 1,
    }


def _of_dots(c: Config, layer: int, name: str, values: np.ndarray) -> Numbers | None:
    """Keys and values in two, and the factors of latents in their norms."""
    of = "swa_" if _slides(c)[layer] else ""
    if name == "self_attn.kv_b_proj":
        both = values.reshape(c[f"{of}num_attention_heads"], -1, values.shape[-1])
        keys, rest = np.split(both, [c[f"{of}qk_nope_head_dim"]], 1)
        turned = np.ascontiguousarray(keys.transpose(0, 2, 1))
        return {"attn_k_b.weight": turned, "attn_v_b.weight": np.ascontiguousarray(rest)}
    if (norm := re.fullmatch(r"self_attn\.(q|kv)_a_layernorm", name)) is not None:
        factor = np.float32((c["hidden_size"] / len(values)) ** 0.5)
        return {f"attn_{norm[1]}_a_norm.weight": values * factor}
    return None


PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"} | {"self_attn.o_proj": "attn_output"}
WRITTEN = {
    "grove_moe": Written(
        "grovemoe",
        GROVE_MOE,
        _grove,
        OUTER
        | ATTENTION
        | {f"self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"}
        | {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"},
        {f"mlp.experts.{name}": f"ffn_{part}_exps" for part, name in PROJECTIONS.items()}
        | {f"mlp.chunk_experts.{name}": f"ffn_{part}_chexps" for part, name in PROJECTIONS.items()},
    ),
    "dots3_note": Written(
        "dots3note",
        DOTS,
        _dots,
        OUTER
        | {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
        | {f"self_attn.{name}_proj": f"attn_{name}" for name in ("q_a", "q_b")}
        | {"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.k_rope_only_layernorm": "attn_k_norm"}
        | {"self_attn.g_proj": "attn_gate", "mlp.gate": "ffn_gate_inp"}
        | {
            "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
            "self_attn.indexer.k_norm.bias": "indexer.k_norm.bias",
        }
        | {"self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k"}
        | {"self_attn.indexer.weights_proj": "indexer.proj", "self_attn.indexer.k_norm": "indexer.k_norm"}
        | {f"mlp.{name}": f"ffn_{part}" for part, name in PROJECTIONS.items()}
        | {f"mlp.shared_experts.{name}": f"ffn_{part}_shexp" for part, name in PROJECTIONS.items()},
        {f"mlp.experts.{name}": f"ffn_{part}_exps" for part, name in PROJECTIONS.items()},
        _of_dots,
    ),
    "grok": Written(
        "grok",
        GROK,
        _grok,
        OUTER
        | ATTENTION
        | {f"mlp.{name}": f"ffn_{part}" for part, name in PROJECTIONS.items()}
        | {"pre_attn_norm": "attn_norm", "post_attn_norm": "attn_output_norm", "pre_moe_norm": "ffn_norm"}
        | {"post_moe_norm": "layer_output_norm", "block_sparse_moe.gate": "ffn_gate_inp"},
        {
            f"block_sparse_moe.experts.{name}": f"ffn_{part}_exps"
            for name, part in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
        },
    ),
}


def drawn_small(family: str) -> dict[str, Tensor]:
    """Random tensors of the family's config, small ones, in f32."""
    return {name: tensor.float() * 0.2 for name, tensor in random_tensors(WRITTEN[family].config).items()}


def converted(written: Written, tensors: Mapping[str, Tensor]) -> Numbers:
    found, stacks = Numbers(), dict[str, dict[int, np.ndarray]]()
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        of_layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*?)(?:\.weight)?", name)
        if of_layer is None:
            found[f"{written.names[name.removesuffix('.weight')]}.weight"] = values
            continue
        block, own = f"blk.{of_layer[1]}.", of_layer[2]
        if (changed := written.changed(written.config, int(of_layer[1]), own, values)) is not None:
            found |= {f"{block}{each}": numbers for each, numbers in changed.items()}
            continue
        expert = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)", own)
        if expert is None:
            called = written.names[own]
            found[f"{block}{called}" + ("" if called.endswith(".bias") else ".weight")] = values
        else:
            whole = f"{block}{written.stacked[f'{expert[1]}.{expert[3]}']}.weight"
            stacks.setdefault(whole, {})[int(expert[2])] = values
    return found | {name: np.stack([each[i] for i in range(len(each))]) for name, each in stacks.items()}


def write_own(
    path: Path,
    family: str,
    tensors: Mapping[str, Tensor],
    changed: Config | None = None,
    kinds: str = "F32",
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """changed: metadata, None to leave one out; kinds: the type of matrices, F32 where rows do not fit its blocks;
    more: further tensors."""
    written = WRITTEN[family]
    writer = gguf.GGUFWriter(path, written.architecture)
    for name, value in (written.metadata(written.config) | dict(changed or {})).items():
        if value is not None:
            add_field(writer, f"{written.architecture}.{name}", value)
    for name, numbers in (converted(written, tensors) | dict(more or {})).items():
        kind = gguf.GGMLQuantizationType["F32" if numbers.ndim == 1 or "gate_inp" in name else kinds]
        if numbers.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
