"""How ERNIE 4.5 VL sees: a ViT without learnt positions, and a resampler of squares of patches, and of pairs of frames.

A picture is a film of two equal frames to the resampler.
"""

from __future__ import annotations

from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import AttentionConfig, NormConfig
from moeinf.models.layers.vision.image_processor import OF_CLIP, Defaults, MergedPatches
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention

_TOWER, _RESAMPLER = "vision_model.", "model.resampler_model."
_DEFAULTS = Defaults(56 * 56, 28 * 28 * 6177, *OF_CLIP)


def ernie_vision(f: Fields, text: AttentionConfig) -> tuple[Vision, tuple[int, int]]:
    """And the tokens in front of a picture and behind it. f: config.json."""
    v = f.within("vision_config")
    for fields, name in ((f, "spatial_conv_size"), (f, "temporal_conv_size"), (v, "temporal_merge_size")):
        fields.only(name, 2, None)
    v.only("in_channels", 3, None)
    patch, merge = v.count("patch_size", 14), v.count("spatial_merge_size", 2)
    marks = f.count("image_start_token_id", 101304), f.count("image_end_token_id", 101305)
    tower = _tower(v, Cut(patch, merge, (3 * patch * patch,)), text)

    def form(settings: Fields, tokens: int | None) -> MergedPatches:
        return MergedPatches.parse(settings, patch, merge, 1, tokens, _DEFAULTS)

    return Vision(tower, form, f.count("image_token_id", 100295), merge**2, marks), marks


def _tower(f: Fields, cut: Cut, text: AttentionConfig) -> MergingTower:
    """f: vision_config."""
    hidden, eps = f.count("hidden_size", 1280), f.number("rms_norm_eps", 1e-6)
    f.only("embed_dim", hidden, None)
    rope = f.within("rope_parameters")
    rope.only("rope_type", "axial", "default", None)
    size = f.count("intermediate_size", int(hidden * f.number("mlp_ratio", 4)))
    heads = f.count_of("num_heads", "num_attention_heads") if "num_heads" in f or "num_attention_heads" in f else 16
    config = VitConfig(
        tower_attention(hidden, heads, eps),
        f.count("depth", 32, maximum=MOST_LAYERS),
        text.hidden_size,
        cut,
        TowerMlp(("mlp.fc1", "mlp.fc2"), size, activation_of(f, default="quick_gelu")),
        VitNames(_TOWER),
        theta=rope.number("rope_theta", 1e4),
        biased_patches=False,
    )
    wide = hidden * cut.merge**2
    return MergingTower(
        config,
        Projector(
            (
                NormConfig(f"{_TOWER}ln.weight", eps, "layer"),
                "patch by patch",
                *_mixed("spatial_linear", wide, eps),
                "twice",
                *_mixed("temporal_linear", wide, eps),
                Dense(f"{_RESAMPLER}mlp", text.hidden_size),
                NormConfig(f"{_RESAMPLER}after_norm.weight", text.norm_eps),
            )
        ),
    )


def _mixed(name: str, wide: int, eps: float) -> tuple[Dense, Dense, NormConfig]:
    prefix = f"{_RESAMPLER}{name}."
    return (
        Dense(f"{prefix}0", wide, activation="gelu"),
        Dense(f"{prefix}2", wide),
        NormConfig(f"{prefix}3.weight", eps, "layer"),
    )
