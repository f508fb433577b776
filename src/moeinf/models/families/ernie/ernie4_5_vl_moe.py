"""ERNIE 4.5 VL: ERNIE 4.5 with its gates transposed, and a tower that sees pictures (Ernie4_5_VLMoe).

Each layer has as many experts again for images (picture_experts.py). A checkpoint whose tower is not read runs without
them: no token of a text is routed to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeinf.errors import UnsupportedModelError
from moeinf.models.families.ernie import ernie4_5_moe
from moeinf.models.families.ernie.ernie4_5_moe import BiasRowMoe, SoftmaxRouter, moe_layers, parse_with
from moeinf.models.families.ernie.ernie_vision import ernie_vision
from moeinf.models.families.ernie.picture_experts import PictureConnections, PictureMoe, with_transposed
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe import BlockSite, Moe, sparse_layers
from moeinf.models.layers.protocol import Layers, Weights
from moeinf.models.layers.rope import rope_fields, whole_heads
from moeinf.models.layers.vision.picture_positions import turned_by_turns
from moeinf.models.layers.vision.vision import Vision, seeing
from moeinf.models.text_part import TextIn
from moeinf.models.widened import widened
from moeinf.types import DType, JsonObject, ModelInfo, TensorPlan

_PUBLISHED = "ernie4_5_moe_vl"
_OF_WHOLE = ("model_type", "vision_config", "spatial_conv_size", "temporal_conv_size")
_IMAGES = r"(model\.)?(vision_model|resampler_model)\..*"


def _as_saved(config: JsonObject) -> JsonObject:
    """A published config in the words of transformers: what is said of text and images is a list of two there."""
    f = Fields(config)
    if f.get("model_type") != _PUBLISHED:
        return config
    f.only("rope_3d", True, None)
    of_text, of_images = f.counts("moe_num_experts", 2)
    if of_text != of_images:
        raise UnsupportedModelError(f"{f.where}: moe_num_experts {[of_text, of_images]} is not supported (only equal)")
    ends = {f"moe_layer_{end}_index": f.counts(f"moe_layer_{end}_index", 2) for end in ("start", "end")}
    reach = {"moe_layer_start_index": min(ends["moe_layer_start_index"])}
    reach["moe_layer_end_index"] = max(ends["moe_layer_end_index"])
    layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    sparse = moe_layers(f.replaced(**reach), layers)
    kinds = ["sparse" if i in sparse else "dense" for i in range(layers)]
    text = {name: value for name, value in config.items() if name not in ends and name not in _OF_WHOLE}
    found = {"text_config": text | {"moe_num_experts": of_text, "mlp_layer_types": kinds}}
    found |= {"image_token_id": config["im_patch_id"]} if "im_patch_id" in config else {}
    whole = (name for name in config if name in _OF_WHOLE or name.startswith(("image_", "video_")))
    return found | {name: config[name] for name in whole}


def _parse(f: Fields) -> Spec:
    f.present("moe_intermediate_size")
    whole_heads(f)
    rope_fields(f).only("rope_type", "default", None)
    layers = sparse_layers(f, f.count("num_hidden_layers", maximum=MOST_LAYERS), first_dense=1)
    of_text, _ = f.counts("moe_intermediate_size", 2)
    spec = parse_with(f.replaced(moe_intermediate_size=of_text), layers, Router)
    return replace(spec, blocks=widened(TextMoe, spec.blocks))


@dataclass(frozen=True, slots=True)
class TextMoe(BiasRowMoe):
    """Gates are stored as [hidden, experts], biases as [2, experts]: of text, then of images."""

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        return with_transposed(BiasRowMoe.shapes(self, decoder), self.names)

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan, count = BiasRowMoe.plan(self, decoder, dense), self.moe.num_experts
        numbers = "|".join(map(str, range(count, 2 * count)))
        of_images = (r".*\.mlp\.gate\.weight_1", rf".*\.mlp\.experts\.({numbers})\..*")
        return replace(plan, ignored=(*plan.ignored, *of_images))


class Router(SoftmaxRouter):
    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        super().__init__(layers, moe, site)
        self._bias = layers.weights.vector(site.block + moe.names.bias)[: moe.moe.num_experts]

    def _gate_of(self, weights: Weights, name: str) -> Callable[[Hidden], Hidden]:
        return weights.transposed(name)


class Family(ernie4_5_moe.Family):
    name = "ernie4_5_vl_moe"
    divisible = False
    parse = staticmethod(_parse)
    ignored = (_IMAGES,)
    renamed = (*ernie4_5_moe.Family.renamed, (r"^model\.vision_model\.", "vision_model."))
    text = TextIn("model.", tied=True)

    def __init__(self, config: JsonObject) -> None:
        config = _as_saved(config)
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: self._seeing(Fields(config)))

    def _seeing(self, f: Fields) -> Vision | None:
        """Takes the experts for images, too."""
        if f.get("vision_config") is None or f.get("text_config") is None:
            return None
        text, d = f.within("text_config"), self.decoder
        vision, marks = ernie_vision(f, d.attention)
        assert d.attention.rope is not None and isinstance(self.spec.blocks, Moe)
        blocks = PictureMoe.of(self.spec.blocks, text.counts("moe_intermediate_size", 2))
        attention = replace(d.attention, rope=turned_by_turns(text, d.attention.rope, [22, 22, 20]))
        self.take(
            replace(
                self.spec, decoder=replace(d, attention=attention), blocks=blocks, connections=PictureConnections(marks)
            )
        )
        return vision

    def info(self, dtype: DType) -> ModelInfo:
        found, blocks = super().info(dtype), self.spec.blocks
        filling = blocks.filling(found.hidden_size) if isinstance(blocks, PictureMoe) else 0
        return replace(found, num_params=found.num_params - filling)
