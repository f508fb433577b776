"""Writes checkpoints as GGUF files with the gguf package, in the names, orders and metadata of llama.cpp's converter.

tests/unit/gguf/test_converter.py holds it against files that the converter itself made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import quants
from torch import Tensor

from moeinf.types import Format
from tests.support import hybrid_gguf, recorded_gguf
from tests.support.blocks import even_blocks
from tests.support.converter.published import ARCHITECTURES as RECORDED_ARCHITECTURES

Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]
Stored = Callable[[Blocks, gguf.GGMLQuantizationType], tuple[Blocks, gguf.GGMLQuantizationType]]
Kinds = Callable[[str], str]  # of a tensor's name in the file: its ggml type, such as "Q8_0"
ARCHITECTURES = (
    {
        "mixtral": "llama",
        "qwen2_moe": "qwen2moe",
        "qwen3_moe": "qwen3moe",
        "qwen3_next": "qwen3next",
        "qwen3_5_moe": "qwen35moe",
        "deepseek_v2": "deepseek2",
        "deepseek_v3": "deepseek2",
        "glm4_moe": "glm4moe",
        "gpt_oss": "gpt-oss",
        "granitemoe": "granitemoe",
        "olmoe": "olmoe",
        "phimoe": "phimoe",
        "arctic": "arctic",
        "qwen3_vl_moe": "qwen3vlmoe",
        "dots1": "dots1",
        "minimax_m2": "minimax-m2",
        "ernie4_5_moe": "ernie4_5-moe",
        "exaone_moe": "exaone-moe",
        "gemma4": "gemma4",
    }
    | hybrid_gguf.ARCHITECTURES
    | RECORDED_ARCHITECTURES
)
_ALWAYS_F32 = re.compile(
    r"norm|ffn_gate_inp|indexer\.proj|\.bias$|ssm_(a$|d$|conv1d|norm)|shortconv\.conv|sinks|rope_|exp_probs_b"
    r"|_exps\.scale$|layer_output_scale|hc_(\w+_)?(fn|base|scale)\.|indexer_compressor"
)


_OF_PICTURES = ("vision_config", "image_token_id", "vision_start_token_id", "vision_end_token_id")
LIKE = {  # families whose text is converted as another's
    "glm4v_moe": "glm4_moe",
    "glm5v": "glm_moe_dsa",
    "kimi_k25": "deepseek_v3",
}


def architecture_of(model_type: str, c: Mapping[str, Any]) -> str:
    second = model_type == "bailing_moe" and "score_function" in c
    return "bailingmoe2" if second else ARCHITECTURES[model_type]


def as_it_is(blocks: Blocks, kind: gguf.GGMLQuantizationType) -> tuple[Blocks, gguf.GGMLQuantizationType]:
    return blocks, kind


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    kinds: Kinds = lambda name: "BF16",
    metadata: Mapping[str, Any] | None = None,
    tensors_a_part: int = 0,
    fused: bool = False,
    nvfp4: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    scales: Mapping[str, Floats] | None = None,
    stored: Stored = as_it_is,
) -> list[Path]:
    """Writes the model, and returns its files: several if a part has at most so many tensors.

    kinds: what weights become that are not always F32; rows that do not fit its blocks become F16, and in types that
    the gguf package only reads, weights are random blocks. metadata: further
    fields, such as a tokenizer's, that win over the converter's. fused: gate and up of all experts in one tensor.
    nvfp4: blocks [.., bytes of a row] of some tensors, by their names in the file; scales: further tensors of numbers.
    stored: what is written in place of blocks of a type.
    """
    c = config.get("text_config") or {name: value for name, value in config.items() if name not in _OF_PICTURES}
    model_type = LIKE.get(config["model_type"], config["model_type"])
    architecture = architecture_of(model_type, c)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
    fields = {f"{architecture}.{name}": value for name, value in model_metadata(model_type, c).items()}
    for name, value in (fields | dict(metadata or {})).items():
        add_field(writer, name, value)
    for name, numbers in (scales or {}).items():
        writer.add_tensor(name, numbers)
    plain = {name.removeprefix("language_model."): tensor for name, tensor in tensors.items()}
    for name, values in converted(model_type, c, plain, fused=fused).items():
        if values.dtype == np.int32:
            writer.add_tensor(name, values)
            continue
        if nvfp4 and name in nvfp4:
            writer.add_tensor(name, nvfp4[name], raw_dtype=gguf.GGMLQuantizationType.NVFP4)
            continue
        kind = gguf.GGMLQuantizationType["F32" if _is_whole(model_type, name, values) else kinds(name)]
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F16
        blocks, kind = stored(_blocks(values, kind), kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf")) if tensors_a_part else [path]


def _is_whole(model_type: str, name: str, values: Floats) -> bool:
    """Whether a tensor is F32, whatever others are."""
    if model_type in ("dbrx", "deepseek_v4"):
        return values.ndim == 1 or re.search(r"hc_|_ape\.", name) is not None
    return _ALWAYS_F32.search(name) is not None or (model_type == "minimax_m3_vl" and ".indexer." in name)


def _blocks(values: Floats, kind: gguf.GGMLQuantizationType) -> Blocks:
    """The values in blocks; in types that the gguf package reads and does not write, random blocks."""
    try:
        blocks: Blocks = quants.quantize(values, kind)
        return blocks
    except NotImplementedError:
        weights, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        made = even_blocks(cast(Format, kind.name.lower()), values.size // weights, np.random.default_rng(values.size))
        return made.reshape(*values.shape[:-1], values.shape[-1] // weights * num_bytes)


def add_field(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, list) and any(type(number) is int and number >> 31 > 0 for number in value):
        writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64)
        return
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(name, value)


# ---- metadata


def model_metadata(model_type: str, c: Mapping[str, Any]) -> dict[str, Any]:
    if model_type == "gemma4":
        return _gemma(c)
    if model_type in RECORDED_ARCHITECTURES:
        return recorded_gguf.metadata(model_type, c)
    latent = model_type.startswith("deepseek")
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    found = {
        "block_count": hybrid_gguf.num_layers(c),
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c.get("intermediate_size"),
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": 1 if latent else c["num_key_value_heads"],
        "rope.freq_base": float(rope.get("rope_theta") or c["rope_theta"]),
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", _EPSILONS.get(model_type, 1e-6)),
        "expert_count": next(
            c[name]
            for name in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
            if c.get(name)
        ),
        "expert_used_count": c.get("num_experts_per_tok") or c["moe_k"],
    }
    kind = rope.get("rope_type") or rope.get("type")
    if kind in ("yarn", "linear"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        found |= {
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
        }
    if "head_dim" in c:
        found |= {"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]}
    if model_type in ("mixtral", "arctic", "granitemoe") or latent:
        found["vocab_size"] = c["vocab_size"]
    if model_type in ("mixtral", "arctic", "granitemoe", "phimoe"):
        found["rope.dimension_count"] = head_dim
    if model_type.startswith("qwen"):
        found["expert_feed_forward_length"] = c["moe_intermediate_size"]
        if "shared_expert_intermediate_size" in c:
            found["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    if latent or model_type == "glm4_moe":
        found |= {
            "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_feed_forward_length": c["moe_intermediate_size"],
            "expert_shared_count": c["n_shared_experts"],
            "expert_weights_scale": float(c.get("routed_scaling_factor", 1.0)),
            "expert_weights_norm": c.get("norm_topk_prob", True) or (False if model_type == "glm4_moe" else None),
            "expert_group_count": c.get("n_group", 1 if model_type == "glm4_moe" else None),
            "expert_group_used_count": c.get("topk_group", 1 if model_type == "glm4_moe" else None),
        }
    if model_type in _OWN:
        found |= _OWN[model_type](c)
    if model_type in hybrid_gguf.ARCHITECTURES:
        found |= hybrid_gguf.metadata(model_type, c)
    return {name: value for name, value in found.items() if value is not None}


def _latent(c: Mapping[str, Any]) -> dict[str, Any]:
    rope = c.get("rope_scaling") or {}
    return {
        "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
        "attention.value_length": c["kv_lora_rank"],
        "attention.q_lora_rank": c["q_lora_rank"],
        "attention.kv_lora_rank": c["kv_lora_rank"],
        "attention.key_length_mla": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "attention.value_length_mla": c["v_head_dim"],
        "rope.dimension_count": c["qk_rope_head_dim"],
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"] if rope.get("mscale_all_dim") else None,
    }


def _glm(c: Mapping[str, Any]) -> dict[str, Any]:
    said = {**c, **(c.get("rope_parameters") or {})}
    sections = said.get("mrope_section")
    return {
        "rope.dimension_count": int(c["head_dim"] * said["partial_rotary_factor"]),
        "rope.dimension_sections": [*sections, 0] if sections else None,
        "expert_gating_func": 2,
    }


def _delta(c: Mapping[str, Any]) -> dict[str, Any]:
    rope = c.get("rope_parameters") or {}
    rotated = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25))
    every = c.get("full_attention_interval", 4)  # transformers makes layer_types of it, and forgets it
    recurrent = [bool((i + 1) % every) for i in range(c["num_hidden_layers"])]
    sections = rope.get("mrope_section")
    return {
        "ssm.conv_kernel": c["linear_conv_kernel_dim"],
        "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"],
        "ssm.time_step_rank": c["linear_num_value_heads"],
        "ssm.inner_size": c["linear_value_head_dim"] * c["linear_num_value_heads"],
        "full_attention_interval": 4,
        "rope.dimension_count": int(c["head_dim"] * rotated),
        "rope.dimension_sections": [*sections, 0] if sections else None,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in c["layer_types"]]
        if "layer_types" in c
        else recurrent,
    }


def _granite(c: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    return {name: float(c[field]) for name, field in names.items()}


def _phi(c: Mapping[str, Any]) -> dict[str, Any]:
    trained = c["rope_parameters"]["original_max_position_embeddings"]
    scale = c["max_position_embeddings"] / trained
    factor = float(np.sqrt(1 + np.log(scale) / np.log(trained))) if scale > 1 else 1.0
    return {
        "rope.scaling.attn_factor": factor,
        "rope.scaling.original_context_length": trained,
        "attention.sliding_window": c.get("sliding_window") or 0,
    }


def _gemma(c: Mapping[str, Any]) -> dict[str, Any]:
    ropes, slides = c["rope_parameters"], [kind == "sliding_attention" for kind in c["layer_types"]]
    heads = [c["num_key_value_heads"] if each else c["num_global_key_value_heads"] for each in slides]
    found = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "embedding_length_per_layer_input": 0,
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": heads if c["attention_k_eq_v"] else c["num_key_value_heads"],
        "attention.key_length": c["global_head_dim"],
        "attention.value_length": c["global_head_dim"],
        "attention.key_length_swa": c["head_dim"],
        "attention.value_length_swa": c["head_dim"],
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", 1e-6),
        "attention.shared_kv_layers": 0,
        "attention.sliding_window": c["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": c["global_head_dim"],
        "rope.dimension_count_swa": c["head_dim"],
        "expert_count": c.get("num_experts"),
        "expert_used_count": c.get("top_k_experts"),
        "expert_feed_forward_length": c.get("moe_intermediate_size"),
        "final_logit_softcapping": c.get("final_logit_softcapping"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _sigmoid(c: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSeek's blocks of other architectures."""
    return {
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c.get("n_shared_experts") or c["num_shared_experts"],
        "expert_weights_scale": float(c["routed_scaling_factor"]),
        "expert_weights_norm": c.get("norm_topk_prob", True),
        "expert_group_count": c.get("n_group", 1),
        "expert_group_used_count": c.get("topk_group", 1),
    }


def _ernie(c: Mapping[str, Any]) -> dict[str, Any]:
    shared = c["moe_num_shared_experts"]
    return {
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": c["intermediate_size"] // c["num_key_value_heads"] if shared else None,
        "interleave_moe_layer_step": c.get("moe_layer_interval", 1),
        "leading_dense_block_count": c["moe_layer_start_index"],
    }


def _exaone(c: Mapping[str, Any]) -> dict[str, Any]:
    every = c["sliding_window_pattern"]
    kinds = c.get("layer_types") or [
        "sliding_attention" if (i + 1) % every else "full_attention" for i in range(c["num_hidden_layers"])
    ]
    return _sigmoid(c) | {
        "attention.sliding_window": c["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "expert_shared_feed_forward_length": c["moe_intermediate_size"] * c["num_shared_experts"],
        "nextn_predict_layers": 0,
        "rope.scaling.type": "none",
        "vocab_size": c["vocab_size"],
    }


_EPSILONS = {
    "ernie4_5_moe": 1e-5,
    "exaone_moe": 1e-5,
    "mixtral": 1e-5,
    "glm4_moe": 1e-5,
    "gpt_oss": 1e-5,
    "olmoe": 1e-5,
    "phimoe": 1e-5,
}
_OWN: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "glm4_moe": _glm,
    "qwen3_next": _delta,
    "qwen3_5_moe": _delta,
    "granitemoe": _granite,
    "dots1": _sigmoid,
    "ernie4_5_moe": _ernie,
    "exaone_moe": _exaone,
    "qwen3_vl_moe": lambda c: {
        "n_deepstack_layers": 1,
        "rope.dimension_sections": [*c["rope_parameters"]["mrope_section"], 0],
    },
    "minimax_m2": lambda c: {
        "expert_feed_forward_length": c["intermediate_size"],
        "rope.dimension_count": c["rotary_dim"],
    },
    "phimoe": _phi,
    "gpt_oss": lambda c: {
        "attention.sliding_window": c["sliding_window"],
        "expert_feed_forward_length": c["intermediate_size"],
    },
}


# ---- tensors


def converted(
    model_type: str, c: Mapping[str, Any], tensors: Mapping[str, Tensor], *, fused: bool = False
) -> dict[str, Floats]:
    """The tensors of a file in float32, and whole numbers in int32, by their names in it."""
    found: dict[str, Floats] = {}
    name_of = _names(model_type, c)
    for source, tensor in _gathered(tensors).items():
        numbers = tensor.float() if tensor.is_floating_point() else tensor.int()
        for name, values in _changed(model_type, c, source, numbers):
            found[name if name.startswith("blk.") else name_of(name)] = values.numpy()
    if model_type == "phimoe":
        for length in ("short", "long"):
            found[f"rope_factors_{length}.weight"] = np.array(c["rope_parameters"][f"{length}_factor"], np.float32)
    if model_type == "gemma4":
        pairs, turned = c["global_head_dim"] // 2, c["rope_parameters"]["full_attention"]["partial_rotary_factor"]
        found["rope_freqs.weight"] = np.where(np.arange(pairs) < turned * pairs, 1, 1e30).astype(np.float32)
    for name in [name for name in found if fused and name.endswith("ffn_gate_exps.weight")]:
        gate, up = found.pop(name), found.pop(name.replace("gate", "up"))
        found[name.replace("gate", "gate_up")] = np.concatenate([gate, up], axis=1)
    return found


def _names(model_type: str, c: Mapping[str, Any]) -> Callable[[str], str]:
    """What a file calls a tensor of a checkpoint."""
    if model_type in RECORDED_ARCHITECTURES:
        return lambda name: recorded_gguf.name_of(model_type, name)
    architecture = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture_of(model_type, c))
    kept = dict(gguf.TensorNameMap.block_mappings_cfg)  # the package changes it for all architectures that follow
    names = gguf.get_tensor_name_map(architecture, hybrid_gguf.num_layers(c))
    gguf.TensorNameMap.block_mappings_cfg = kept

    def name_of(name: str) -> str:
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, f"{name} of {model_type} has no name in a GGUF file"
        return str(mapped)

    return name_of


def _gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With one tensor for all experts of a layer where each had its own, and one for all parts of a table."""
    found: dict[str, Tensor] = {}
    apart: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        part = re.fullmatch(r"(.*\.experts\.|.*\.ngram_embedding\.shard_)(\d+)\.(.*)", name)
        if part is None:
            found[name] = tensor
        else:
            apart.setdefault(f"{re.sub('shard_$', '', part[1])}{part[3]}", {})[int(part[2])] = tensor
    for name, each in apart.items():
        found[name] = (torch.stack if "experts" in name else torch.cat)([each[i] for i in range(len(each))])
    return found


def _changed(model_type: str, c: Mapping[str, Any], name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What the converter does before it asks for a tensor's name."""
    if model_type in hybrid_gguf.ARCHITECTURES:
        yield from hybrid_gguf.changed(model_type, c, name, tensor)
        return
    if model_type in RECORDED_ARCHITECTURES and model_type != "qwen4_exp":
        yield from recorded_gguf.changed(model_type, c, name, tensor)
        return
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    name = name.replace("model.language_model.", "model.")
    if model_type in ("mixtral", "granitemoe", "arctic") and re.search(r"\.[qk]_proj\.", name):
        count = heads if ".q_proj." in name else kv_heads
        halves = tensor.view(count, 2, tensor.shape[0] // count // 2, -1)
        yield name, halves.transpose(1, 2).reshape(tensor.shape)
    elif name.endswith("kv_b_proj.weight"):
        both = tensor.view(heads, c["qk_nope_head_dim"] + c["v_head_dim"], -1)
        keys, values = both.split([c["qk_nope_head_dim"], c["v_head_dim"]], 1)
        yield name.replace("kv_b", "k_b"), keys.transpose(1, 2).contiguous()
        yield name.replace("kv_b", "v_b"), values.contiguous()
    elif name.endswith("e_score_correction_bias"):
        yield name.replace("_bias", ".bias"), tensor
    elif name.endswith("input_linear.weight"):  # Granite's gate and up
        gate, up = tensor.chunk(2, 1)
        yield name.replace("input_linear", "experts.w1"), gate.contiguous()
        yield name.replace("input_linear", "experts.w3"), up.contiguous()
    elif name.endswith("output_linear.weight"):
        yield name.replace("output_linear", "experts.w2"), tensor
    elif model_type == "gemma4" and re.search(r"\.(experts|router|layer_scalar)\b", name):
        block = f"blk.{name.split('.')[2]}."
        ends = {
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "router.proj.weight": "ffn_gate_inp.weight",
            "experts.gate_up_proj": "ffn_gate_up_exps.weight",
            "experts.down_proj": "ffn_down_exps.weight",
            "layer_scalar": "layer_output_scale.weight",
        }
        yield block + ends[name.split(".", 3)[3]], tensor
    elif model_type == "gpt_oss" and "experts" in name:
        yield from _gpt_oss(name, tensor)
    elif model_type == "gpt_oss" and name.endswith("sinks"):
        yield f"{name}.weight", tensor
    elif name.endswith("index_qk_proj.weight"):
        yield name.replace("qk_proj", "q_proj"), tensor[: -c["indexer_head_dim"]]
        yield name.replace("qk_proj", "k_proj"), tensor[-c["indexer_head_dim"] :]
    elif model_type in ("qwen3_next", "qwen3_5_moe", "qwen4_exp"):
        yield from _delta_net(model_type, c, name, tensor)
    else:
        yield name, tensor


def _gpt_oss(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not name.endswith("_bias"):
        tensor = tensor.transpose(1, 2)
    name = f"{name.removesuffix('_bias')}.{'bias' if name.endswith('_bias') else 'weight'}"
    if "gate_up_proj" in name:
        yield name.replace("gate_up", "gate"), tensor[:, ::2].contiguous()
        yield name.replace("gate_up", "up"), tensor[:, 1::2].contiguous()
    else:
        yield name, tensor.contiguous()


def _delta_net(model_type: str, c: Mapping[str, Any], name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    key_dim, value_dim, each = c["linear_key_head_dim"], c["linear_value_head_dim"], values // keys
    hidden = tensor.shape[-1]
    if name.endswith("in_proj_qkvz.weight"):
        heads = tensor.view(keys, -1, hidden)
        q, k, v, z = (part.reshape(-1, hidden) for part in heads.split([key_dim, key_dim, *[each * value_dim] * 2], 1))
        yield name.replace("qkvz", "qkv"), torch.cat([q, k, v])
        yield name.replace("qkvz", "z"), z
        return
    if model_type != "qwen3_next" and "linear_attn." in name:
        before = 2 * keys * key_dim if "in_proj_qkv" in name or "conv1d" in name else 0
        size = 1 if re.search(r"in_proj_[ab]\.|A_log|dt_bias", name) else value_dim
        if name.endswith("out_proj.weight"):
            tensor = tensor.view(-1, keys, each, value_dim).transpose(1, 2).reshape(tensor.shape)
        elif not name.endswith("linear_attn.norm.weight"):
            behind = tensor[before:].reshape(keys, each, size, -1).transpose(0, 1).reshape(tensor[before:].shape)
            tensor = torch.cat([tensor[:before], behind])
    if name.endswith("A_log"):
        tensor = -torch.exp(tensor)
    elif "conv1d" in name:
        tensor = tensor.squeeze()
    elif re.search(r"norm(_key|_query|_conv)?\.weight$", name) and "linear_attn" not in name:
        tensor = tensor + 1
    yield name.replace(".dt_bias", ".dt_proj.bias"), tensor.contiguous()


# ---- tokenizer


def tokenizer_fields(tokenizer: Mapping[str, Any], pre: str = "gpt-2", size: int = 0, **ids: int) -> dict[str, Any]:
    """What the converter writes of a tokenizer.json of byte pairs; unused tokens fill it up to `size`.

    ids: of tokens with a role, such as eos=1.
    """
    names = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["special"] for token in tokenizer["added_tokens"]}
    names |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    numbers = range(max(size, *(number + 1 for number in names)))
    merges = tokenizer["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [names.get(number, f"[PAD{number}]") for number in numbers],
        "tokenizer.ggml.token_type": [
            5 if number not in names else 1 if number not in special else 3 if special[number] else 4
            for number in numbers
        ],
        "tokenizer.ggml.merges": [each if isinstance(each, str) else " ".join(each) for each in merges],
    } | {f"tokenizer.ggml.{role}_token_id": number for role, number in ids.items()}
