"""The tower of Kimi K2.5 and GLM-5V in GGUF files."""

from __future__ import annotations

from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.header import GgufTensor
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.sight import Sight, normalised, sizes
from moeinf.gguf.undo import Rows, Undo
from moeinf.types import JsonObject


def _config(m: Metadata) -> JsonObject:
    refuse_unless(m, m.flag("use_gelu", False), "use_gelu")
    merge, side = m.count("vision.projector.scale_factor", 2), m.rows("v.position_embd.weight")
    return sizes(m, prefix="vt_") | {
        "text_hidden_size": m.count("vision.projection_dim"),
        "merge_kernel_size": [merge, merge],
        "init_pos_emb_height": side,
        "init_pos_emb_width": side,
        "projector_ln_eps": m.number("vision.attention.layer_norm_epsilon"),
    }


def _pictures(m: Metadata) -> JsonObject:
    """What files say of bounds is in pixels; the least one no program heeds."""
    m.count("vision.image_min_pixels", 0)
    most, patch = m.count("vision.image_max_pixels", 0), m.count("vision.patch_size")
    return {"media_proc_cfg": normalised(m) | ({"in_patch_limit": most // patch**2} if most else {})}


def _halves_apart(name: str, shape: tuple[int, ...], sources: list[GgufTensor], m: Metadata) -> Undo:
    """Of queries and keys, pairs that turn by columns lie in front of those that turn by rows, instead of in turn.

    The first step moves the rows of the values, too, and the second one moves them back."""
    if ".wqkv." not in name:
        return ()
    rows, heads = shape[0] // 3, m.count("vision.attention.head_count")
    quarter = rows // heads // 4
    return (Rows(0, (3 * heads, 2, quarter, 2), (0, 2, 1, 3)), Rows(2 * rows, (heads, quarter, 2, 2), (0, 2, 1, 3)))


_NAMES = (
    (r"vision_tower\.patch_embed\.proj\.(\w+)", r"v.patch_embd.\1"),
    (r"vision_tower\.patch_embed\.pos_emb\.weight", "v.position_embd.weight"),
    (r"vision_tower\.encoder\.blocks\.(\d+)\.wqkv\.(\w+)", r"v.blk.\1.attn_qkv.\2"),
    (r"vision_tower\.encoder\.blocks\.(\d+)\.wo\.(\w+)", r"v.blk.\1.attn_out.\2"),
    (r"vision_tower\.encoder\.blocks\.(\d+)\.norm0\.(\w+)", r"v.blk.\1.ln1.\2"),
    (r"vision_tower\.encoder\.blocks\.(\d+)\.norm1\.(\w+)", r"v.blk.\1.ln2.\2"),
    (r"vision_tower\.encoder\.blocks\.(\d+)\.mlp\.fc0\.(\w+)", r"v.blk.\1.ffn_up.\2"),
    (r"vision_tower\.encoder\.blocks\.(\d+)\.mlp\.fc1\.(\w+)", r"v.blk.\1.ffn_down.\2"),
    (r"vision_tower\.encoder\.final_layernorm\.(\w+)", r"v.post_ln.\1"),
    (r"mm_projector\.pre_norm\.(\w+)", r"mm.input_norm.\1"),
    (r"mm_projector\.proj\.0\.(\w+)", r"mm.1.\1"),
    (r"mm_projector\.proj\.2\.(\w+)", r"mm.2.\1"),
)
MOONVIT = {
    "deepseek2": Sight(
        "kimi_k25",
        "kimik25",
        _config,
        _pictures,
        {
            "media_placeholder_token_id": "<|media_pad|>",
            "vision_start_token_id": "<|media_begin|>",
            "vision_end_token_id": "<|media_end|>",
        },
        _NAMES,
        _halves_apart,
        of_text="deepseek_v3",
    ),
    "glm-dsa": Sight(
        "glm5v",
        "kimik25",
        _config,
        _pictures,
        {"media_placeholder_token_id": "<|image|>"},
        _NAMES,
        _halves_apart,
        of_text="glm_moe_dsa",
    ),
}
