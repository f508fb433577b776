"""How GLM-5.3-Flash sees: GLM-4.5V's tower with norms of heads and bounded MLPs, and without learnt positions."""

from __future__ import annotations

from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import MLP_NAMES, HeadNorms, NormConfig
from moeinf.models.layers.vision.mergers import ConvolvedMerger
from moeinf.models.layers.vision.processors.filled_pictures import FilledPictures
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_PREFIX = "model.visual."


def glm_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    patch, merge, frames = (
        v.count(name, default)
        for name, default in (("patch_size", 14), ("spatial_merge_size", 2), ("temporal_patch_size", 2))
    )
    return Vision(
        _tower(v, hidden_size, Cut.film(patch, merge, frames)),
        lambda settings, tokens: FilledPictures.parse(settings, patch, merge, frames, tokens),
        f.count("image_token_id", 154854),
        merge**2,
        (f.count("image_start_token_id", 154830), f.count("image_end_token_id", 154831)),
    )


def _tower(f: Fields, out_hidden: int, cut: Cut) -> MergingTower:
    """f: vision_config."""
    f.only("hidden_act", "silu", None)
    f.only("in_channels", 3, None)
    f.only("out_hidden_size", out_hidden)
    rope, eps, limit = f.within("rope_parameters"), f.number("rms_norm_eps", 1e-5), f.number("swiglu_limit", 10.0)
    rope.only("rope_type", "axial", "default", None)
    heads = f.count_of("num_heads", "num_attention_heads") if "num_heads" in f or "num_attention_heads" in f else 16
    biased, hidden = f.flag("attention_bias", True), f.count("hidden_size", 1024)
    tower = VitConfig(
        tower_attention(hidden, heads, eps, "rms", biases=(biased, biased), head_norms=HeadNorms()),
        f.count("depth", 24, maximum=MOST_LAYERS),
        out_hidden,
        cut,
        TowerMlp(
            tuple(f"mlp.{name}" for name in MLP_NAMES), f.count("intermediate_size", 4096), "silu", biased, limit=limit
        ),
        VitNames(_PREFIX),
        theta=rope.number("rope_theta", 1e4),
    )
    wide, before = f.count("projection_intermediate_size", 10240), NormConfig(f"{_PREFIX}post_layernorm.weight", eps)
    return MergingTower(tower, ConvolvedMerger(f"{_PREFIX}merger.", f"{_PREFIX}downsample", wide, before, limit))
