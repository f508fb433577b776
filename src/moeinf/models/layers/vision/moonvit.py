"""MoonViT, the tower of Kimi K2.5 and its successors: pairs of a head turn by columns and rows in turn.

Its positions are those of a film; a picture is its first frame, to which nothing is added for the time. That of Kimi K3
has RMS norms, heads of another width than its patches, no biases, and a norm behind its projector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig, NormKind
from moeinf.models.layers.vision.image_processor import PaddedPatches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Layout, Mark, Vision, Whole
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
_RMS_EPS = 2.0**-23  # what torch's RMSNorm adds where it is told nothing: float32's epsilon


def moonvit(f: Fields, out_hidden: int, shown: Shown) -> Vision | None:
    """f: config.json; shown: how a prompt shows pictures."""
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
    return Vision(
        _tower(f, v, out_hidden, Cut(patch, merge, (3, patch, patch))),
        lambda settings, tokens: PaddedPatches.parse(settings, patch, merge, tokens),
        shown.token,
        merge**2,
        shown.brackets,
        shown.layout,
        shown.variable,
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """What a Vision says of prompts."""

    token: Mark
    layout: Layout
    brackets: tuple[Mark, ...] = ()
    variable: str | None = None


def shown_by_kimi(f: Fields) -> Shown:
    """As Kimi K2.5's template does."""
    start, end = f.count("vision_start_token_id", 163602), f.count("vision_end_token_id", 163604)
    token = f.count("media_placeholder_token_id", f.count("image_token_id", 163605))
    return Shown(token, Whole(), (start, "image", start + 1, end))


def _tower(f: Fields, v: Fields, out_hidden: int, cut: Cut) -> MergingTower:
    """v: vision_config."""
    hidden, heads = v.count("vt_hidden_size", 1152), v.count("vt_num_attention_heads", 16)
    for name, value in (
        *(("hidden_act", "gelu_pytorch_tanh"), ("activation_func", "gelu_pytorch_tanh"), ("mlp_type", "mlp2")),
        *(("merge_type", "sd2_tpool"), ("pos_emb_type", "divided_fixed"), ("projector_hidden_act", "gelu")),
        *(("mm_hidden_size", hidden), ("text_hidden_size", out_hidden)),
    ):
        v.only(name, value, None)
    v.only("norm_type", "layernorm", "rmsnorm", None)
    v.only("mm_projector_type", "patchmerger", "patchmergerv2", None)
    v.only("pos_emb_interpolation_mode", "bicubic", "bilinear", None)
    f.only("projection_hidden_size", hidden, None)
    side, rope = v.count("init_pos_emb_height", 64), v.within("rope_parameters")
    if v.count("init_pos_emb_width", 64) != side:
        raise UnsupportedModelError(f"{v.where}: learnt positions of {side} rows are no square")
    rope.only("rope_type", "axial", "default", None)
    wide = v.count("qkv_hidden_size", hidden)
    if wide % heads:
        raise UnsupportedModelError(f"{v.where}: qkv_hidden_size {wide} is no multiple of the {heads} heads")
    biased, rms = v.flag("attn_bias", True), v.get("norm_type") == "rmsnorm"
    kind, eps = ("rms", _RMS_EPS) if rms else ("layer", _EPS)
    config = VitConfig(
        tower_attention(
            hidden,
            heads,
            eps,
            cast(NormKind, kind),
            head_dim=wide // heads,
            biases=(biased, biased),
            names=("wqkv", "wo"),
            by_turns=True,
        ),
        v.count("vt_num_hidden_layers", 27, maximum=MOST_LAYERS),
        out_hidden,
        cut,
        TowerMlp(("mlp.fc0", "mlp.fc1"), v.count("vt_intermediate_size", 4304), biased=v.flag("linear_bias", True)),
        VitNames(_TOWER, "encoder.blocks.", "", ("norm0", "norm1")),
        LearntPositions(
            f"{_TOWER}patch_embed.pos_emb.weight",
            side,
            "linear" if v.get("pos_emb_interpolation_mode") == "bilinear" else "cubic",
            squared=True,
        ),
        theta=rope.number("rope_theta", 1e4),
        biased_patches=v.flag("patch_embed_proj_bias", True),
    )
    last = NormConfig(f"{_TOWER}encoder.final_layernorm.weight", eps, cast(NormKind, kind))
    return MergingTower(config, _projector(f, v, last, hidden * cut.merge**2, out_hidden))


def _projector(f: Fields, v: Fields, last: NormConfig, wide: int, out_hidden: int) -> Projector:
    """last: the tower's own norm."""
    eps = v.number("projector_ln_eps", f.number("projection_layer_norm_eps", 1e-5))
    second = v.get("mm_projector_type") == "patchmergerv2"
    denses = (
        Dense(f"{_PROJECTOR}proj.0", wide, not second, activation="gelu"),
        Dense(f"{_PROJECTOR}proj.2", out_hidden, not second),
    )
    if second:
        return Projector((last, "patch by patch", *denses, NormConfig(f"{_PROJECTOR}post_norm.weight", eps)))
    return Projector((last, NormConfig(f"{_PROJECTOR}pre_norm.weight", eps, "layer"), "patch by patch", *denses))
