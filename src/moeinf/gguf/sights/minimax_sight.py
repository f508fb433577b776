"""The tower of MiniMax-M3 in GGUF files."""

from __future__ import annotations

from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.header import GgufTensor
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.merging_sight import merged_pictures, of_film
from moeinf.gguf.sights.sight import Sight, sizes
from moeinf.gguf.undo import RowsOfHeads, Undo
from moeinf.types import JsonObject


def _config(m: Metadata) -> JsonObject:
    refuse_unless(m, m.flag("use_gelu", False), "use_gelu")
    return sizes(m) | {
        "spatial_merge_size": m.count("vision.spatial_merge_size", 2),
        "temporal_patch_size": 2,
        "layer_norm_eps": m.number("vision.attention.layer_norm_epsilon"),
    }


def _undo(name: str, shape: tuple[int, ...], sources: list[GgufTensor], m: Metadata) -> Undo:
    """Of queries and keys, what turns by time, by rows and by columns lies apart; here are the halves of all three."""
    if ".q_proj." not in name and ".k_proj." not in name:
        return of_film(name, shape, sources, m)
    heads = m.count("vision.attention.head_count")
    return (RowsOfHeads(heads, (3, 2, shape[0] // heads // 3 // 2), (1, 0, 2)),)


_TOWER = r"vision_tower\.vision_model\."
_LAYER = rf"{_TOWER}encoder\.layers\.(\d+)\."
_NAMES = (
    (rf"{_TOWER}embeddings\.patch_embedding\.weight", "v.patch_embd.weight v.patch_embd.weight.1"),
    (rf"{_TOWER}pre_layrnorm\.(\w+)", r"v.pre_ln.\1"),
    (rf"{_LAYER}self_attn\.([qkv])_proj\.(\w+)", r"v.blk.\1.attn_\2.\3"),
    (rf"{_LAYER}self_attn\.out_proj\.(\w+)", r"v.blk.\1.attn_out.\2"),
    (rf"{_LAYER}layer_norm([12])\.(\w+)", r"v.blk.\1.ln\2.\3"),
    (rf"{_LAYER}mlp\.fc1\.(\w+)", r"v.blk.\1.ffn_up.\2"),
    (rf"{_LAYER}mlp\.fc2\.(\w+)", r"v.blk.\1.ffn_down.\2"),
    (r"multi_modal_projector\.linear_([12])\.(\w+)", r"mm.\1.\2"),
    (r"patch_merge_mlp\.linear_([12])\.(\w+)", r"mm.merger.fc\1.\2"),
)
MINIMAX = {
    "minimax-m3": Sight(
        "minimax_m3_vl",
        "minimax_m3",
        _config,
        merged_pictures,
        {"image_token_index": "]<]image[>["},
        _NAMES,
        _undo,
        whole=lambda m: {"projector_hidden_size": m.rows("mm.1.weight")},
    )
}
