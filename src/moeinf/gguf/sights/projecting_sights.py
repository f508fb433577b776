"""The towers of Mistral Small 4 and Llama 4 in GGUF files."""

from __future__ import annotations

from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.header import GgufTensor
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.sight import Sight, normalised, sizes
from moeinf.gguf.undo import Rows, Undo
from moeinf.types import JsonObject

_BREAK = "v.token_embd.img_break"  # the language model's embedding of a token between rows, once more


def _common(m: Metadata) -> JsonObject:
    eps = m.number("vision.attention.layer_norm_epsilon")
    refuse_unless(m, abs(eps - 1e-5) < 1e-9, "vision.attention.layer_norm_epsilon")
    return sizes(m) | {"image_size": m.count("vision.image_size")}


def _pixtral(m: Metadata) -> JsonObject:
    silu, gelu = m.flag("use_silu", False), m.flag("use_gelu", False)
    refuse_unless(m, silu != gelu, "use_silu")
    return _common(m) | {"hidden_act": "silu" if silu else "gelu", "rope_theta": m.number("rope.freq_base", 1e4)}


def _merger(m: Metadata) -> JsonObject:
    return {
        "spatial_merge_size": m.count("vision.spatial_merge_size", 2),
        "multimodal_projector_bias": m.tensor("mm.1.bias") is not None,
        "projector_hidden_act": "gelu",
    }


def _interleaved(name: str, shape: tuple[int, ...], sources: list[GgufTensor], m: Metadata) -> Undo:
    """Files have the pairs that are turned together side by side."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return ()
    heads = m.count("vision.attention.head_count")
    return (Rows(0, (heads, shape[0] // heads // 2, 2), (0, 2, 1)),)


def _llama(m: Metadata) -> JsonObject:
    refuse_unless(m, m.flag("use_gelu", False), "use_gelu")
    last = m.tensor("mm.model.fc.weight")
    width = last.shape[1] if last is not None else 1
    return _common(m) | {
        "hidden_act": "gelu",
        "pixel_shuffle_ratio": 1 / m.count("vision.projector.scale_factor", 2),
        "vision_output_dim": width,
        "projector_input_dim": width,
        "projector_output_dim": width,
    }


_OF_PIXTRAL = (
    (r"vision_tower\.patch_conv\.weight", "v.patch_embd.weight"),
    (r"vision_tower\.ln_pre\.weight", "v.pre_ln.weight"),
    (r"vision_tower\.transformer\.layers\.(\d+)\.attention\.([qkv])_proj\.weight", r"v.blk.\1.attn_\2.weight"),
    (r"vision_tower\.transformer\.layers\.(\d+)\.attention\.o_proj\.weight", r"v.blk.\1.attn_out.weight"),
    (r"vision_tower\.transformer\.layers\.(\d+)\.attention_norm\.weight", r"v.blk.\1.ln1.weight"),
    (r"vision_tower\.transformer\.layers\.(\d+)\.ffn_norm\.weight", r"v.blk.\1.ln2.weight"),
    (r"vision_tower\.transformer\.layers\.(\d+)\.feed_forward\.(\w+)_proj\.weight", r"v.blk.\1.ffn_\2.weight"),
    (r"multi_modal_projector\.norm\.weight", "mm.input_norm.weight"),
    (r"multi_modal_projector\.patch_merger\.merging_layer\.weight", "mm.patch_merger.weight"),
    (r"multi_modal_projector\.linear_(\d)\.(\w+)", r"mm.\1.\2"),
)
_OF_LLAMA = (
    (r"vision_model\.patch_embedding\.linear\.weight", "v.patch_embd.weight"),
    (r"vision_model\.class_embedding", "v.class_embd"),
    (r"vision_model\.positional_embedding_vlm", "v.position_embd.weight"),
    (r"vision_model\.layernorm_(pre|post)\.(\w+)", r"v.\1_ln.\2"),
    (r"vision_model\.model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)", r"v.blk.\1.attn_\2.\3"),
    (r"vision_model\.model\.layers\.(\d+)\.self_attn\.o_proj\.(\w+)", r"v.blk.\1.attn_out.\2"),
    (r"vision_model\.model\.layers\.(\d+)\.input_layernorm\.(\w+)", r"v.blk.\1.ln1.\2"),
    (r"vision_model\.model\.layers\.(\d+)\.post_attention_layernorm\.(\w+)", r"v.blk.\1.ln2.\2"),
    (r"vision_model\.model\.layers\.(\d+)\.post_attention_layernorm\.(\w+)", r"v.blk.\1.attn_post_norm.\2"),  # newer
    (r"vision_model\.model\.layers\.(\d+)\.mlp\.fc1\.(\w+)", r"v.blk.\1.ffn_up.\2"),
    (r"vision_model\.model\.layers\.(\d+)\.mlp\.fc2\.(\w+)", r"v.blk.\1.ffn_down.\2"),
    (r"vision_model\.vision_adapter\.mlp\.fc(\d)\.weight", r"mm.model.mlp.\1.weight"),
    (r"multi_modal_projector\.linear_1\.weight", "mm.model.fc.weight"),
)

PROJECTING = {
    "mistral4": Sight(
        "mistral4",
        "pixtral",
        _pixtral,
        lambda m: normalised(m) | {"size": {"longest_edge": m.count("vision.image_size")}},
        {"image_token_index": "[IMG]"},
        _OF_PIXTRAL,
        _interleaved,
        whole=_merger,
        unused=(_BREAK,),
    ),
    "llama4": Sight(
        "llama4",
        "llama4",
        _llama,
        lambda m: normalised(m) | {"resample": 2},
        {"image_token_index": "<|patch|>", "boi_token_index": "<|image_start|>", "eoi_token_index": "<|image_end|>"},
        _OF_LLAMA,
    ),
}
