"""How Qwen3.5 and its kin see: a ViT whose neighbouring patches are merged into tokens (arXiv 2511.21631).

Qwen3-VL's also gives what it has behind some of its blocks to the first layers of the language model (deepstack,
arXiv 2406.04334).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.vision.image_processor import MergedPatches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class QwenNames:
    """Of the tensors of a tower and of what merges patches, behind its blocks and behind some of them."""

    prefix: str = "model.visual."
    deep: str = "deepstack_merger_list"
    norm: str = "norm"
    denses: tuple[str, str] = ("linear_fc1", "linear_fc2")


def qwen_vision(
    config: JsonObject,
    decoder: DecoderConfig,
    ids: tuple[int, int, int],
    *,
    deep: bool = False,
    names: QwenNames = QwenNames(),
) -> Vision | None:
    """ids: those of the start, a picture and the end, where config.json has none; deep: layers may be given rows."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    patch, merge, frames = (
        v.count(name, default)
        for name, default in (("patch_size", 16), ("spatial_merge_size", 2), ("temporal_patch_size", 2))
    )
    most_deep = decoder.num_layers if deep else 0
    tower = _tower(v, decoder.attention.hidden_size, Cut.film(patch, merge, frames), most_deep, names)
    return Vision(
        tower,
        lambda settings, tokens: MergedPatches.parse(settings, patch, merge, frames, tokens),
        f.count("image_token_id", ids[1]),
        merge**2,
        (f.count("vision_start_token_id", ids[0]), f.count("vision_end_token_id", ids[2])),
    )


def _tower(f: Fields, out_hidden: int, cut: Cut, most_deep: int, names: QwenNames) -> MergingTower:
    """f: vision_config. most_deep: layers of the language model that may be given rows."""
    f.only("hidden_act", "gelu_pytorch_tanh", None)
    f.only("in_channels", 3, None)
    f.only("out_hidden_size", out_hidden)
    places = f.count("num_position_embeddings", 2304)
    if isqrt(places) ** 2 != places:
        raise UnsupportedModelError(f"{f.where}: num_position_embeddings {places} is no square")
    rope = f.within("rope_parameters")
    rope.only("rope_type", "axial", "default", None)
    depth, deep = f.count("depth", 27, maximum=MOST_LAYERS), f.get("deepstack_visual_indexes") or []
    sound = isinstance(deep, list) and all(type(each) is int and 0 <= each < depth for each in deep)
    if not sound or sorted({*deep}) != deep or len(deep) > most_deep:
        raise UnsupportedModelError(f"{f.where}: deepstack_visual_indexes {deep!r:.50} is not supported")
    heads = f.count_of("num_heads", "num_attention_heads") if "num_heads" in f or "num_attention_heads" in f else 16
    config = VitConfig(
        tower_attention(f.count("hidden_size", 1152), heads, _EPS),
        depth,
        out_hidden,
        cut,
        TowerMlp(("mlp.linear_fc1", "mlp.linear_fc2"), f.count("intermediate_size", 4304)),
        VitNames(names.prefix),
        LearntPositions(f"{names.prefix}pos_embed.weight", isqrt(places), "corners"),
        theta=rope.number("rope_theta", 1e4),
    )
    behind = {block: _merger(f"{names.deep}.{i}.", config, names, joined=True) for i, block in enumerate(deep)}
    return MergingTower(config, _merger("merger.", config, names, joined=False), behind)


def _merger(name: str, config: VitConfig, names: QwenNames, *, joined: bool) -> Projector:
    """joined: what is normed is the patches of a token together."""
    prefix, wide = names.prefix + name, config.attention.hidden_size * config.cut.merge**2
    norm = NormConfig(f"{prefix}{names.norm}.weight", _EPS, "layer")
    return Projector(
        (
            *(("patch by patch", norm) if joined else (norm, "patch by patch")),
            Dense(prefix + names.denses[0], wide, activation="gelu"),
            Dense(prefix + names.denses[1], config.out_hidden),
        )
    )
