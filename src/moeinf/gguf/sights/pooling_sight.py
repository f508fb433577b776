"""The tower of Gemma 4 in GGUF files."""

from __future__ import annotations

import re

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.header import GgufTensor
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.sight import Sight, normalised, sizes
from moeinf.gguf.undo import Columns, Reshape, Undo
from moeinf.types import JsonObject


def _pooling(m: Metadata) -> JsonObject:
    head_dim = m.rows("v.blk.0.attn_q_norm.weight")
    table = m.tensor("v.position_embd.weight")
    m.flag("use_gelu", True)
    limits = re.compile(r"v\..*\.(input|output)_(min|max)")
    return sizes(m) | {
        "num_key_value_heads": m.rows("v.blk.0.attn_k.weight") // head_dim,
        "head_dim": head_dim,
        "rms_norm_eps": m.number("vision.attention.layer_norm_epsilon", 1e-6),
        "pooling_kernel_size": m.count("vision.projector.scale_factor", 3),
        "position_embedding_size": table.shape[1] if table is not None and len(table.shape) == 3 else 1,
        "standardize": m.tensor("v.std_bias") is not None,
        "use_clipped_linears": any(map(limits.fullmatch, m.gguf.tensors)),
    }


def _pooled_pictures(m: Metadata) -> JsonObject:
    plain: JsonObject = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    if (found := normalised(m)) != plain:
        raise UnsupportedModelError(f"{m.where}: pictures that are normalised ({found}) are not supported")
    return {}


_OF_POOLING = (
    (r"model\.vision_tower\.patch_embedder\.input_proj\.weight", "v.patch_embd.weight"),
    (r"model\.vision_tower\.patch_embedder\.position_embedding_table", "v.position_embd.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\..*", r"v.blk.\1.attn_\2.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.self_attn\.o_proj\..*", r"v.blk.\1.attn_out.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qk])_norm\.weight", r"v.blk.\1.attn_\2_norm.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.mlp\.(\w+)_proj\..*", r"v.blk.\1.ffn_\2.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.input_layernorm\.weight", r"v.blk.\1.ln1.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.pre_feedforward_layernorm\.weight", r"v.blk.\1.ln2.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.post_attention_\w+\.weight", r"v.blk.\1.attn_post_norm.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.post_feedforward_\w+\.weight", r"v.blk.\1.ffn_post_norm.weight"),
    (r"model\.vision_tower\.std_(bias|scale)", r"v.std_\1"),
    (r"model\.embed_vision\.embedding_projection\.weight", "mm.input_projection.weight"),
)
_OF_GEMMA = {"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"}


def _pixels_first(name: str, shape: tuple[int, ...], sources: list[GgufTensor], m: Metadata) -> Undo:
    """Of a patch; in files channels come first."""
    if not name.endswith("input_proj.weight"):
        return ()
    side = sources[0].shape[-1]
    return Reshape((shape[0], 3 * side * side)), Columns((3, side, side), (1, 2, 0))


POOLING = {
    "gemma4": Sight(
        "gemma4",
        "gemma4v",
        _pooling,
        _pooled_pictures,
        _OF_GEMMA,
        _OF_POOLING,
        _pixels_first,
        text=lambda gguf, text: {"use_bidirectional_attention": "vision"},  # as published: no file says
    )
}
