"""MoonViT, the tower of Kimi K2.5 and its successors: pairs of a head turn by columns and rows in turn.

Its positions are those of a film; a picture is its first frame, to which nothing is added for the time.
"""

from __future__ import annotations

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.vision.image_processor import PaddedPatches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention

_TOWER, _PROJECTOR = "vision_tower.", "mm_projector."
_OF_TRANSFORMERS = {  # its names of published fields
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
}
_EPS = 1e-5  # which no field says


def moonvit(f: Fields, out_hidden: int) -> Vision | None:
    """f: config.json."""
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    called = {name: other for name, other in _OF_TRANSFORMERS.items() if name not in v}
    v = v.replaced(**{name: v.get(other) for name, other in called.items()}).renamed(called)
    merge, patch = 2, v.count("patch_size", 14)
    if v.get("merge_kernel_size") is not None:
        merge, other = v.counts("merge_kernel_size", 2)
        if merge != other:
            raise UnsupportedModelError(f"{v.where}: merge_kernel_size {merge} x {other} is no square")
    start, end = f.count("vision_start_token_id", 163602), f.count("vision_end_token_id", 163604)
    return Vision(
        _tower(f, v, out_hidden, Cut(patch, merge, (3, patch, patch))),
        lambda settings, tokens: PaddedPatches.parse(settings, patch, merge, tokens),
        f.count("media_placeholder_token_id", f.count("image_token_id", 163605)),
        merge**2,
        (start, "image", start + 1, end),
    )


def _tower(f: Fields, v: Fields, out_hidden: int, cut: Cut) -> MergingTower:
    """v: vision_config."""
    hidden = v.count("vt_hidden_size", 1152)
    v.only("hidden_act", "gelu_pytorch_tanh", None)
    v.only("merge_type", "sd2_tpool", None)
    v.only("mm_projector_type", "patchmerger", None)
    v.only("pos_emb_type", "divided_fixed", None)
    v.only("projector_hidden_act", "gelu", None)
    v.only("mm_hidden_size", hidden, None)
    v.only("text_hidden_size", out_hidden, None)
    f.only("projection_hidden_size", hidden, None)
    side, rope = v.count("init_pos_emb_height", 64), v.within("rope_parameters")
    if v.count("init_pos_emb_width", 64) != side:
        raise UnsupportedModelError(f"{v.where}: learnt positions of {side} rows are no square")
    rope.only("rope_type", "axial", "default", None)
    config = VitConfig(
        tower_attention(hidden, v.count("vt_num_attention_heads", 16), _EPS, names=("wqkv", "wo"), by_turns=True),
        v.count("vt_num_hidden_layers", 27, maximum=MOST_LAYERS),
        out_hidden,
        cut,
        TowerMlp(("mlp.fc0", "mlp.fc1"), v.count("vt_intermediate_size", 4304)),
        VitNames(_TOWER, "encoder.blocks.", "", ("norm0", "norm1")),
        LearntPositions(f"{_TOWER}patch_embed.pos_emb.weight", side, "cubic", squared=True),
        theta=rope.number("rope_theta", 1e4),
    )
    eps = v.number("projector_ln_eps", f.number("projection_layer_norm_eps", 1e-5))
    projector = Projector(
        (
            NormConfig(f"{_TOWER}encoder.final_layernorm.weight", _EPS, "layer"),
            NormConfig(f"{_PROJECTOR}pre_norm.weight", eps, "layer"),
            "patch by patch",
            Dense(f"{_PROJECTOR}proj.0", hidden * cut.merge**2, activation="gelu"),
            Dense(f"{_PROJECTOR}proj.2", out_hidden),
        )
    )
    return MergingTower(config, projector)
