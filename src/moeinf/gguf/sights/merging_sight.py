"""Towers of Qwen3-VL, Qwen3.5 and their kin, and of GLM-4.5V, in GGUF files."""

from __future__ import annotations

from functools import partial
from math import isqrt

from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.header import GgufTensor
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.sight import Sight, merged_sizes, normalised, three_positions
from moeinf.gguf.undo import Reshape, Rows, Stack, Undo
from moeinf.types import JsonObject


def _merging(m: Metadata) -> JsonObject:
    m.number("vision.attention.layer_norm_epsilon", 0.0)  # the language model's, which is not the tower's
    refuse_unless(m, m.flag("use_gelu", False), "use_gelu")
    return merged_sizes(m) | {
        "num_position_embeddings": m.rows("v.position_embd.weight"),
        "deepstack_visual_indexes": deep_blocks(m),
    }


def deep_blocks(m: Metadata) -> list[int]:
    return [i for i, each in enumerate(m.values("vision.is_deepstack_layers") or []) if each]


def merged_pictures(m: Metadata) -> JsonObject:
    bounds = {name: m.count(f"vision.image_{name}", 0) for name in ("min_pixels", "max_pixels")}
    return normalised(m) | {name: count for name, count in bounds.items() if count}


OF_MERGING = (
    (r"model\.visual\.patch_embed\.proj\.weight", "v.patch_embd.weight v.patch_embd.weight.1"),
    (r"model\.visual\.patch_embed\.proj\.bias", "v.patch_embd.bias"),
    (r"model\.visual\.pos_embed\.weight", "v.position_embd.weight"),
    (r"model\.visual\.blocks\.(\d+)\.attn\.qkv\.(\w+)", r"v.blk.\1.attn_qkv.\2"),
    (r"model\.visual\.blocks\.(\d+)\.attn\.proj\.(\w+)", r"v.blk.\1.attn_out.\2"),
    (r"model\.visual\.blocks\.(\d+)\.norm([12])\.(\w+)", r"v.blk.\1.ln\2.\3"),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.linear_fc1\.(\w+)", r"v.blk.\1.ffn_up.\2"),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.linear_fc2\.(\w+)", r"v.blk.\1.ffn_down.\2"),
    (r"model\.visual\.deepstack_merger_list\.(\d+)\.norm\.(\w+)", r"v.deepstack.\1.norm.\2"),
    (r"model\.visual\.deepstack_merger_list\.(\d+)\.linear_(\w+)\.(\w+)", r"v.deepstack.\1.\2.\3"),
    (r"model\.visual\.merger\.norm\.(\w+)", r"v.post_ln.\1"),
    (r"model\.visual\.merger\.linear_fc1\.(\w+)", r"mm.0.\1"),
    (r"model\.visual\.merger\.linear_fc2\.(\w+)", r"mm.2.\1"),
)
IDS_OF_QWEN = {
    "image_token_id": "<|image_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def of_film(name: str, shape: tuple[int, ...], sources: list[GgufTensor], m: Metadata) -> Undo:
    """A convolution over frames, which lies there as one for each."""
    if len(shape) < 5:
        return ()
    hidden, channels, frames, *patch = shape
    pixels = patch[0] * patch[1]
    in_turn = Rows(0, (frames, hidden * channels), (1, 0))
    return Stack(), Reshape((frames * hidden * channels, pixels)), in_turn, Reshape(shape)


def _qwen(family: str) -> Sight:
    return Sight(
        family,
        "qwen3vl_merger",
        _merging,
        merged_pictures,
        IDS_OF_QWEN,
        OF_MERGING,
        of_film,
        text=partial(three_positions, interleaved=True),
    )


def _glm(m: Metadata) -> JsonObject:
    patch = m.count("vision.patch_size")
    return _bounded_or_not(m) | {"image_size": isqrt(m.rows("v.position_embd.weight")) * patch}


def _bounded_glm(m: Metadata) -> JsonObject:
    """Of which files call the size of blocks' MLPs feed_forward_length, not that of the merger's."""
    bounds = {"projection_intermediate_size": m.rows("mm.gate.weight"), "swiglu_limit": m.number("vision.swiglu_clamp")}
    return _bounded_or_not(m) | bounds


def _bounded_or_not(m: Metadata) -> JsonObject:
    refuse_unless(m, m.flag("use_silu", False), "use_silu")
    return merged_sizes(m) | {
        "hidden_act": "silu",
        "attention_bias": m.tensor("v.blk.0.attn_qkv.bias") is not None,
        "rms_norm_eps": m.number("vision.attention.layer_norm_epsilon"),
    }


_OF_GLM = (
    *(each for each in OF_MERGING if "merge" not in each[0] and "pos_embed" not in each[0]),
    (r"model\.visual\.embeddings\.position_embedding\.weight", "v.position_embd.weight"),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.(\w+)_proj\.(\w+)", r"v.blk.\1.ffn_\2.\3"),
    (r"model\.visual\.blocks\.(\d+)\.attn\.([qk])_norm\.weight", r"v.blk.\1.attn_\2_norm.weight"),
    (r"model\.visual\.post_conv_layernorm\.weight", "v.norm_embd.weight"),
    (r"model\.visual\.post_layernorm\.weight", "v.post_ln.weight"),
    (r"model\.visual\.downsample\.(\w+)", r"mm.patch_merger.\1"),
    (r"model\.visual\.merger\.proj\.weight", "mm.model.fc.weight"),
    (r"model\.visual\.merger\.post_projection_norm\.(\w+)", r"mm.post_norm.\1"),
    (r"model\.visual\.merger\.(\w+)_proj\.weight", r"mm.\1.weight"),
)


def _filled_pictures(m: Metadata) -> JsonObject:
    """What files say of bounds is in pixels."""
    token = (m.count("vision.patch_size") * m.count("vision.spatial_merge_size", 2)) ** 2
    bounds = {f"{name}_image_tokens": m.count(f"vision.image_{name}_pixels", 0) // token for name in ("min", "max")}
    return normalised(m) | {name: count for name, count in bounds.items() if count}


_IDS_OF_GLM = {
    "image_token_id": "<|image|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
}
MERGING = {
    "qwen35moe": _qwen("qwen3_5_moe"),
    "qwen3vlmoe": _qwen("qwen3_vl_moe"),
    "qwen4exp": _qwen("qwen4_exp"),
    "glm4moe": Sight(
        "glm4v_moe",
        "glm4v",
        _glm,
        merged_pictures,
        _IDS_OF_GLM,
        _OF_GLM,
        of_film,
        text=partial(three_positions, interleaved=False),
        of_text="glm4_moe",
    ),
    "glm5-next": Sight("glm5_next", "glm5v", _bounded_glm, _filled_pictures, _IDS_OF_GLM, _OF_GLM, of_film),
}
