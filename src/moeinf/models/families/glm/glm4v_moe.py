"""GLM-4.5V and 4.6V: GLM-4.5-Air and a tower that sees pictures (arXiv 2507.01006)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.errors import UnsupportedModelError
from moeinf.models.families.glm import glm4_moe
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import MLP_NAMES, NormConfig
from moeinf.models.layers.vision.image_processor import OF_CLIP, Defaults, ImageProcessor, MergedPatches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.mergers import ConvolvedMerger
from moeinf.models.layers.vision.picture_positions import turned_in_sections
from moeinf.models.layers.vision.vision import Vision, seeing
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.models.text_part import VISION, TextIn
from moeinf.types import JsonObject

_PREFIX = "model.visual."
_DEFAULTS = Defaults(112 * 112, 28 * 28 * 15000, *OF_CLIP)


class Family(glm4_moe.Family):
    name = "glm4v_moe"
    ignored = (VISION,)
    text = TextIn()

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: self._vision(Fields(config)))

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("use_qk_norm", False, None)
        f.present("attention_bias")
        return glm4_moe.Family.parse(f)

    def _vision(self, f: Fields) -> Vision | None:
        if f.get("vision_config") is None or f.get("text_config") is None:
            return None
        v, attention = f.within("vision_config"), self.decoder.attention
        tower, cut = _tower(v, attention.hidden_size), _cut(v)

        def form(settings: Fields, tokens: int | None) -> ImageProcessor:
            return MergedPatches.parse(settings, cut.patch, cut.merge, cut.kernel[1], tokens, _DEFAULTS, of_film=True)

        assert attention.rope is not None
        rope = turned_in_sections(f.within("text_config"), attention.rope, [8, 12, 12])
        self.take(replace(self.spec, decoder=replace(self.decoder, attention=replace(attention, rope=rope))))
        brackets = f.count("image_start_token_id", 151339), f.count("image_end_token_id", 151340)
        return Vision(tower, form, f.count("image_token_id", 151363), cut.merge**2, brackets)


def _cut(f: Fields) -> Cut:
    return Cut.film(f.count("patch_size", 14), f.count("spatial_merge_size", 2), f.count("temporal_patch_size", 2))


def _tower(f: Fields, out_hidden: int) -> MergingTower:
    """f: vision_config. What it calls intermediate_size is the size of the merger's MLP; blocks' is out_hidden_size."""
    f.only("hidden_act", "silu", None)
    f.only("in_channels", 3, None)
    f.only("out_hidden_size", out_hidden)
    rope, eps, cut = f.within("rope_parameters"), f.number("rms_norm_eps", 1e-5), _cut(f)
    rope.only("rope_type", "axial", "default", None)
    heads = f.count_of("num_heads", "num_attention_heads") if "num_heads" in f or "num_attention_heads" in f else 12
    side = f.count("image_size", 336) // cut.patch
    if not side:
        raise UnsupportedModelError(f"{f.where}: image_size is less than patch_size, {cut.patch}")
    config = VitConfig(
        tower_attention(
            f.count("hidden_size", 1536), heads, eps, "rms", biases=(f.flag("attention_bias", False), False)
        ),
        f.count("depth", 24, maximum=MOST_LAYERS),
        out_hidden,
        cut,
        TowerMlp(tuple(f"mlp.{name}" for name in MLP_NAMES), out_hidden, "silu", biased=False),
        VitNames(_PREFIX),
        LearntPositions(f"{_PREFIX}embeddings.position_embedding.weight", side, "cubic"),
        NormConfig(f"{_PREFIX}post_conv_layernorm.weight", eps),
        rope.number("rope_theta", 1e4),
    )
    merger = ConvolvedMerger(
        f"{_PREFIX}merger.",
        f"{_PREFIX}downsample",
        f.count("intermediate_size", 13696),
        NormConfig(f"{_PREFIX}post_layernorm.weight", eps),
    )
    return MergingTower(config, merger)
