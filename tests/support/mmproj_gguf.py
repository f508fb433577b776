"""Writes vision towers as mmproj files, in the names, shapes and metadata of llama.cpp's converter.

tests/unit/gguf/test_towers.py holds it against files that the converter itself made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import quants
from torch import Tensor

from tests.support.gguf_files import Floats, Kinds, add_field

_RENAMED = (
    (r"model\.visual\.blocks\.(\d+)\.attn\.proj\.", r"v.blk.\1.attn_out."),
    (r"model\.visual\.blocks\.(\d+)\.attn\.qkv\.", r"v.blk.\1.attn_qkv."),
    (r"model\.visual\.blocks\.(\d+)\.norm(\d)\.", r"v.blk.\1.ln\2."),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.linear_fc1\.", r"v.blk.\1.ffn_up."),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.linear_fc2\.", r"v.blk.\1.ffn_down."),
    (r"model\.visual\.merger\.norm\.", "v.post_ln."),
    (r"model\.visual\.merger\.linear_fc1\.", "mm.0."),
    (r"model\.visual\.merger\.linear_fc2\.", "mm.2."),
    (r"model\.visual\.pos_embed\.", "v.position_embd."),
    (r"model\.visual\.patch_embed\.proj\.", "v.patch_embd."),
    (r"model\.visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?", r"v.deepstack.\1."),
    (r"model\.visual\.embeddings\.position_embedding", "v.position_embd"),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.(\w+)_proj", r"v.blk.\1.ffn_\2"),
    (r"model\.visual\.blocks\.(\d+)\.attn\.([qk])_norm", r"v.blk.\1.attn_\2_norm"),
    (r"model\.visual\.post_conv_layernorm", "v.norm_embd"),
    (r"model\.visual\.post_layernorm", "v.post_ln"),
    (r"model\.visual\.downsample", "mm.patch_merger"),
    (r"model\.visual\.merger\.proj", "mm.model.fc"),
    (r"model\.visual\.merger\.post_projection_norm", "mm.post_norm"),
    (r"model\.visual\.merger\.(\w+)_proj", r"mm.\1"),
    (r"^vision_tower\.patch_embed\.proj", "v.patch_embd"),
    (r"^vision_tower\.patch_embed\.pos_emb", "v.position_embd"),
    (r"^vision_tower\.encoder\.blocks\.(\d+)\.", r"v.blk.\1."),
    (r"(?<=\d)\.wqkv", ".attn_qkv"),
    (r"(?<=\d)\.wo", ".attn_out"),
    (r"(?<=\d)\.norm0", ".ln1"),
    (r"^(v\.blk\.\d+)\.norm1", r"\1.ln2"),
    (r"^(v\.blk\.\d+)\.mlp\.fc0", r"\1.ffn_up"),
    (r"^(v\.blk\.\d+)\.mlp\.fc1", r"\1.ffn_down"),
    (r"^vision_tower\.encoder\.final_layernorm", "v.post_ln"),
    (r"^mm_projector\.pre_norm", "mm.input_norm"),
    (r"^mm_projector\.proj\.0", "mm.1"),
    (r"^mm_projector\.proj\.2", "mm.2"),
    (r"model\.vision_tower\.std_", "v.std_"),
    (r"model\.vision_tower\.patch_embedder\.input_proj\.", "v.patch_embd."),
    (r"model\.vision_tower\.patch_embedder\.position_embedding_table", "v.position_embd.weight"),
    (r"model\.embed_vision\.embedding_projection\.", "mm.input_projection."),
    (r"vision_tower\.vision_model\.embeddings\.patch_embedding", "v.patch_embd"),
    (r"vision_tower\.vision_model\.pre_layrnorm", "v.pre_ln"),
    (r"vision_tower\.vision_model\.encoder\.layers\.(\d+)\.", r"v.blk.\1."),
    (r"self_attn\.([qkv])_proj\.(?!linear)", r"attn_\1."),
    (r"self_attn\.out_proj", "attn_out"),
    (r"layer_norm([12])", r"ln\1"),
    (r"^(v\.blk\.\d+)\.mlp\.fc1", r"\1.ffn_up"),
    (r"^(v\.blk\.\d+)\.mlp\.fc2", r"\1.ffn_down"),
    (r"patch_merge_mlp\.linear_", "mm.merger.fc"),
    (r"vision_tower\.patch_conv", "v.patch_embd"),
    (r"vision_tower\.ln_pre", "v.pre_ln"),
    (r"vision_tower\.transformer\.layers\.(\d+)\.", r"v.blk.\1."),
    (r"attention\.([qkv])_proj", r"attn_\1"),
    (r"attention\.o_proj", "attn_out"),
    (r"attention_norm", "ln1"),
    (r"ffn_norm", "ln2"),
    (r"feed_forward\.(\w+)_proj", r"ffn_\1"),
    (r"multi_modal_projector\.norm", "mm.input_norm"),
    (r"multi_modal_projector\.patch_merger\.merging_layer", "mm.patch_merger"),
    (r"multi_modal_projector\.linear_(\d)", r"mm.\1"),
    (r"vision_model\.patch_embedding\.linear", "v.patch_embd"),
    (r"vision_model\.class_embedding", "v.class_embd"),
    (r"vision_model\.positional_embedding_vlm", "v.position_embd.weight"),
    (r"vision_model\.layernorm_(\w+)", r"v.\1_ln"),
    (r"vision_model\.model\.layers\.(\d+)\.self_attn\.([qkv])_proj", r"v.blk.\1.attn_\2"),
    (r"vision_model\.model\.layers\.(\d+)\.self_attn\.o_proj", r"v.blk.\1.attn_out"),
    (r"vision_model\.model\.layers\.(\d+)\.mlp\.fc1", r"v.blk.\1.ffn_up"),
    (r"vision_model\.model\.layers\.(\d+)\.mlp\.fc2", r"v.blk.\1.ffn_down"),
    (r"vision_model\.model\.layers\.(\d+)\.", r"v.blk.\1."),
    (r"vision_model\.vision_adapter\.mlp\.fc", "mm.model.mlp."),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.", r"v.blk.\1."),
    (r"self_attn\.o_proj\.linear", "attn_out"),
    (r"self_attn\.([qkv])_proj\.linear", r"attn_\1"),
    (r"self_attn\.([qk])_norm", r"attn_\1_norm"),
    (r"mlp\.(\w+)_proj\.linear", r"ffn_\1"),
    (r"input_layernorm", "ln1"),
    (r"pre_feedforward_layernorm", "ln2"),
    (r"post_attention_layernorm", "attn_post_norm"),
    (r"post_feedforward_layernorm", "ffn_post_norm"),
)
_OF_ONE = {
    "llama4": ((r"multi_modal_projector\.linear_1", "mm.model.fc"),),
    "step3p7": (
        (r"^vision_model\.conv1", "v.patch_embd"),
        (r"^vision_model\.positional_embedding", "v.position_embd.weight"),
        (r"^vision_model\.ln_pre", "v.pre_ln"),
        (r"^vision_model\.transformer\.resblocks\.(\d+)\.", r"v.blk.\1."),
        (r"attn\.in_proj", "attn_qkv"),
        (r"attn\.out_proj", "attn_out"),
        (r"ln_([12])", r"ln\1"),
        (r"ls_([12])\.gamma", r"ls\1.weight"),
        (r"mlp\.c_fc", "ffn_up"),
        (r"mlp\.c_proj", "ffn_down"),
        (r"^vision_model\.vit_downsampler1", "mm.0"),
        (r"^vision_model\.vit_downsampler2", "mm.1"),
        (r"^vit_large_projector", "mm.model.fc"),
    ),
    "mimo_v2_flash": (
        (r"^visual\.patch_embed\.proj", "v.patch_embd"),
        (r"^visual\.blocks\.(\d+)\.attn\.sinks", r"v.blk.\1.attn_sinks"),
        (r"^visual\.blocks\.(\d+)\.attn\.qkv", r"v.blk.\1.attn_qkv"),
        (r"^visual\.blocks\.(\d+)\.attn\.proj", r"v.blk.\1.attn_out"),
        (r"^visual\.blocks\.(\d+)\.norm(\d)", r"v.blk.\1.ln\2"),
        (r"^visual\.blocks\.(\d+)\.mlp\.(\w+)_proj", r"v.blk.\1.ffn_\2"),
        (r"^visual\.merger\.ln_q", "v.post_ln"),
        (r"^visual\.merger\.mlp\.(\d)", r"mm.\1"),
    ),
}
_ALWAYS_F32 = re.compile(r"patch_embd|patch_merger|position_embd|norm|ln\d?\.|std_|class_embd|bias$|sinks$|ls\d\.")


def write_mmproj(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    kinds: Kinds = lambda name: "BF16",
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the tower of a model whose config.json and tensors these are.

    kinds: what matrices become, by their names in the file; rows that do not fit its blocks become F16. metadata:
    further fields, which win over the converter's; None takes one away.
    """
    writer = gguf.GGUFWriter(path, "clip")
    found = tower_metadata(config)
    fields = {"general.type": "mmproj"} | found | dict(metadata or {})
    for name, value in fields.items():
        if value is not None:
            add_field(writer, name, value)
    vision = config["vision_config"]
    deep, heads = vision.get("deepstack_visual_indexes", []), vision.get("num_attention_heads", 1)
    for source, tensor in tensors.items():
        for name, values in as_in_files(source, tensor.float().numpy(), deep, heads, config["model_type"]):
            plain = _ALWAYS_F32.search(name)
            kind = gguf.GGMLQuantizationType["F32" if plain else kinds(name)]
            if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
                kind = gguf.GGMLQuantizationType.F16
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tower_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    v, text = (
        {"spatial_merge_size": config.get("spatial_merge_size", 2)} | config["vision_config"],
        config.get("text_config", config),
    )
    found = {
        "has_vision_encoder": True,
        "vision.projection_dim": text["hidden_size"],
        "vision.patch_size": v.get("patch_size", 16),
        "vision.embedding_length": v["hidden_size"],
        "vision.feed_forward_length": v.get("intermediate_size") or int(v["hidden_size"] * v["mlp_ratio"]),
        "vision.block_count": v.get("depth") or v["num_hidden_layers"],
        "vision.attention.head_count": v.get("num_heads") or v["num_attention_heads"],
        "vision.image_mean": [0.5] * 3,
        "vision.image_std": [0.5] * 3,
        **_OF_FAMILIES[config["model_type"]](v, text),
    }
    return {f"clip.{name}": value for name, value in found.items()}


def _of_gemma(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": 224,
        "vision.image_mean": [0.0] * 3,
        "vision.image_std": [1.0] * 3,
        "vision.projector_type": "gemma4v",
        "vision.attention.layer_norm_epsilon": 1e-6,
    }


def _of_glm(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": v["image_size"],
        "projector_type": "glm4v",
        "use_silu": True,
        "vision.attention.layer_norm_epsilon": v.get("rms_norm_eps", 1e-5),
    }


def _of_bounded_glm(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": v.get("image_size", 336),
        "projector_type": "glm5v",
        "use_silu": True,
        "vision.attention.layer_norm_epsilon": v.get("rms_norm_eps", 1e-5),
        "vision.spatial_merge_size": v.get("spatial_merge_size", 2),
        "vision.swiglu_clamp": v["swiglu_limit"],
    }


def _of_kimi(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    patch = v["patch_size"]
    return {
        "vision.image_size": v.get("pos_emb_height", v.get("init_pos_emb_height")) * patch,
        "vision.image_min_pixels": 8 * patch**2,
        "vision.image_max_pixels": 16384 * patch**2,
        "vision.projector.scale_factor": v["merge_kernel_size"][0],
        "projector_type": "kimik25",
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": 1e-5,
    }


def _of_qwen(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    deep = v.get("deepstack_visual_indexes", [])
    return {
        "vision.image_size": int(v["num_position_embeddings"] ** 0.5 * v.get("patch_size", 16)),
        "projector_type": "qwen3vl_merger",
        "use_gelu": True,
        "vision.spatial_merge_size": v.get("spatial_merge_size", 2),
        "vision.attention.layer_norm_epsilon": text.get("rms_norm_eps", 1e-6),
        "vision.is_deepstack_layers": [i in deep for i in range(v["depth"])],
    }


def _of_llama(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": v["image_size"],
        "projector_type": "llama4",
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.projector.scale_factor": round(1 / v["pixel_shuffle_ratio"]),
    }


def _of_pixtral(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": v["image_size"],
        "projector_type": "pixtral",
        f"use_{v['hidden_act']}": True,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.spatial_merge_size": v["spatial_merge_size"],
    }


def _of_mimo(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """With a model of sound in the same file."""
    return {
        "has_audio_encoder": True,
        "audio.projector_type": "mimo_audio",
        "audio.rvq.codebook_size": [1024, 128],
        "vision.image_size": 560,
        "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
        "vision.image_std": [0.26862954, 0.26130258, 0.27577711],
        "vision.image_min_pixels": 256,
        "vision.image_max_pixels": 8192,
        "vision.projector_type": "mimovl",
        "use_silu": True,
        "vision.attention.head_count_kv": v["num_key_value_heads"],
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.spatial_merge_size": v["spatial_merge_size"],
        "vision.window_size": v["visual_token_window_size"],
        "vision.wa_pattern_mode": v["vit_window_attn_types"],
    }


def _of_step(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": v["image_size"],
        "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
        "vision.image_std": [0.26862954, 0.26130258, 0.27577711],
        "projector_type": "step3vl",
        "vision.attention.layer_norm_epsilon": v.get("layer_norm_eps", 1e-5),
        "vision.projector.scale_factor": 4,
        "vision.preproc_image_size": 3024,
    }


def _of_minimax(v: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vision.image_size": v.get("image_size", 2016),
        "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
        "vision.image_std": [0.26862954, 0.26130258, 0.27577711],
        "projector_type": "minimax_m3",
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": v.get("layer_norm_eps", 1e-5),
        "vision.spatial_merge_size": v.get("spatial_merge_size", 2),
    }


def _halves_together(heads: Floats) -> Floats:
    """Of each head six parts by turns, as the converter of MiniMax-M3 puts them: [heads, rows of one, ..]."""
    third = heads.shape[1] // 3 // 2
    parts = [slice(i * third, (i + 1) * third) for i in (0, 3, 1, 4, 2, 5)]
    return np.concatenate([*(heads[:, part] for part in parts), heads[:, 6 * third :]], axis=1)


_OF_FAMILIES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]] = {
    "gemma4": _of_gemma,
    "glm4v_moe": _of_glm,
    "glm5_next": _of_bounded_glm,
    "glm5v": _of_kimi,
    "kimi_k25": _of_kimi,
    "llama4": _of_llama,
    "mimo_v2_flash": _of_mimo,
    "minimax_m3_vl": _of_minimax,
    "mistral3": _of_pixtral,
    "qwen3_5_moe": _of_qwen,
    "qwen3_vl_moe": _of_qwen,
    "qwen4_exp": _of_qwen,
    "step3p7": _of_step,
}


def as_in_files(
    name: str, values: Floats, deep: Sequence[int], num_heads: int = 1, model_type: str = ""
) -> Iterator[tuple[str, Floats]]:
    """A tensor as files have it. deep: the blocks behind which there are rows for layers."""
    renamed = name
    for pattern, to in (*_OF_ONE.get(model_type, ()), *_RENAMED):
        renamed = re.sub(pattern, to, renamed)
    renamed = re.sub(r"(?<=^v\.deepstack\.)\d+", lambda at: str(deep[int(at[0])]), renamed)
    if ".wqkv." in name:  # pairs of queries and keys that turn by columns, then those that turn by rows
        queries, keys, others = np.split(values, 3)
        both = [
            each.reshape(num_heads, -1, 2, 2, *each.shape[1:]).swapaxes(1, 2).reshape(each.shape)
            for each in (queries, keys)
        ]
        yield renamed, np.concatenate([*both, others])
    elif name.endswith(("patch_embed.proj.weight", "patch_embedding.weight")) and values.ndim == 5:
        yield renamed, np.ascontiguousarray(values[:, :, 0])
        yield f"{renamed}.1", np.ascontiguousarray(values[:, :, 1])
    elif re.search(
        r"vision_tower\.vision_model.*[qk]_proj", name
    ):  # halves of time, rows and columns, not three of each
        yield renamed, _halves_together(values.reshape(num_heads, -1, *values.shape[1:])).reshape(values.shape)
    elif re.search(r"vision_tower\.transformer.*[qk]_proj", name):  # pairs that are turned together, side by side
        heads = values.reshape(num_heads, 2, -1, values.shape[1])
        yield renamed, np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(values.shape)
    elif name.endswith("input_proj.weight"):
        side = round((values.shape[1] / 3) ** 0.5)
        yield renamed, np.ascontiguousarray(values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))
    else:
        yield renamed, values
