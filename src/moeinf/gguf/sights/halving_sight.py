"""The tower of Step 3.7 in GGUF files."""

from __future__ import annotations

from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.sights.sight import Sight, normalised, sizes
from moeinf.types import JsonObject


def _config(m: Metadata) -> JsonObject:
    refuse_unless(m, m.count("vision.projector.scale_factor", 4) == 4, "vision.projector.scale_factor")
    return sizes(m) | {
        "image_size": m.count("vision.image_size"),
        "layer_norm_eps": m.number("vision.attention.layer_norm_epsilon"),
    }


def _pictures(m: Metadata) -> JsonObject:
    """The sides of windows no file says."""
    side = m.count("vision.image_size")
    longest = m.count("vision.preproc_image_size", 3024)
    return normalised(m) | {"size": {"height": side, "width": side}, "max_image_size": longest}


_TOWER = r"vision_model\."
_BLOCK = rf"{_TOWER}transformer\.resblocks\.(\d+)\."
_NAMES = (
    (rf"{_TOWER}conv1\.weight", "v.patch_embd.weight"),
    (rf"{_TOWER}positional_embedding", "v.position_embd.weight"),
    (rf"{_TOWER}ln_pre\.(\w+)", r"v.pre_ln.\1"),
    (rf"{_BLOCK}attn\.in_proj\.(\w+)", r"v.blk.\1.attn_qkv.\2"),
    (rf"{_BLOCK}attn\.out_proj\.(\w+)", r"v.blk.\1.attn_out.\2"),
    (rf"{_BLOCK}ln_([12])\.(\w+)", r"v.blk.\1.ln\2.\3"),
    (rf"{_BLOCK}ls_([12])\.gamma", r"v.blk.\1.ls\2.weight"),
    (rf"{_BLOCK}mlp\.c_fc\.(\w+)", r"v.blk.\1.ffn_up.\2"),
    (rf"{_BLOCK}mlp\.c_proj\.(\w+)", r"v.blk.\1.ffn_down.\2"),
    (rf"{_TOWER}vit_downsampler1\.(\w+)", r"mm.0.\1"),
    (rf"{_TOWER}vit_downsampler2\.(\w+)", r"mm.1.\1"),
    (r"vit_large_projector\.(\w+)", r"mm.model.fc.\1"),
)
HALVING = {
    "step35": Sight(
        "step3p7",
        "step3vl",
        _config,
        _pictures,
        {"image_token_id": "<im_patch>"},
        _NAMES,
        whole=lambda m: {"projector_bias": m.tensor("mm.model.fc.bias") is not None},
    )
}
