"""The tower of MiMo-V2.5 in GGUF files."""

from __future__ import annotations

from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.merging_sight import IDS_OF_QWEN, OF_MERGING, merged_pictures, of_film
from moeinf.gguf.sights.sight import Sight, merged_sizes
from moeinf.types import JsonObject

_SEES_ALL = -1  # of the kinds of blocks


def _config(m: Metadata) -> JsonObject:
    refuse_unless(m, m.flag("use_silu", False), "use_silu")
    heads, keys = m.count("vision.attention.head_count"), m.count("vision.attention.head_count_kv")
    kinds = list(m.values("vision.wa_pattern_mode") or [])
    return merged_sizes(m) | {
        "num_key_value_heads": keys,
        "qk_channels": m.rows("v.blk.0.attn_qkv.weight") // max(1, heads + 2 * keys),
        "rms_norm_eps": m.number("vision.attention.layer_norm_epsilon"),
        "visual_token_window_size": m.count("vision.window_size"),
        "fullatt_block_indexes": [i for i, kind in enumerate(kinds) if kind == _SEES_ALL],
        "vit_window_attn_types": kinds,
    }


_NAMES = (
    *((pattern.removeprefix(r"model\."), name) for pattern, name in OF_MERGING if "merge" not in pattern),
    (r"visual\.blocks\.(\d+)\.attn\.sinks", r"v.blk.\1.attn_sinks"),
    (r"visual\.blocks\.(\d+)\.mlp\.(\w+)_proj\.(\w+)", r"v.blk.\1.ffn_\2.\3"),
    (r"visual\.merger\.ln_q\.(\w+)", r"v.post_ln.\1"),
    (r"visual\.merger\.mlp\.([02])\.(\w+)", r"mm.\1.\2"),
)
BANDED = {
    "mimo2": Sight("mimo_v2_flash", "mimovl", _config, merged_pictures, IDS_OF_QWEN, _NAMES, of_film, nested=False)
}
