"""ERNIE 4.5 VL, the language model of it: ERNIE 4.5's, with its gates transposed (Ernie4_5_VLMoe).

Each layer has as many experts again for images, of another size. No token of a text is routed to them: they, their
gates and the model of images are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeinf.models.families.ernie import ernie4_5_moe
from moeinf.models.families.ernie.ernie4_5_moe import BiasRowMoe, SoftmaxRouter, parse_with
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe import BlockSite, Moe, sparse_layers
from moeinf.models.layers.protocol import Layers, Weights
from moeinf.models.layers.rope import rope_fields, whole_heads
from moeinf.models.text_part import TextIn
from moeinf.models.widened import widened
from moeinf.types import TensorPlan

_IMAGES = r"model\.(vision_model|resampler_model)\..*"


def _parse(f: Fields) -> Spec:
    f.present("moe_intermediate_size")
    whole_heads(f)
    rope_fields(f).only("rope_type", "default", None)
    layers = sparse_layers(f, f.count("num_hidden_layers", maximum=MOST_LAYERS), first_dense=1)
    of_text, _ = f.counts("moe_intermediate_size", 2)
    spec = parse_with(f.replaced(moe_intermediate_size=of_text), layers, Router)
    return replace(spec, blocks=widened(SeeingMoe, spec.blocks))


@dataclass(frozen=True, slots=True)
class SeeingMoe(BiasRowMoe):
    """Gates are stored as [hidden, experts], biases as [2, experts]: of text, then of images."""

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes = BiasRowMoe.shapes(self, decoder)
        gates = {name: shape[::-1] for name, shape in shapes.items() if name.endswith(self.names.gate)}
        biases = {name: (2, *shape[1:]) for name, shape in shapes.items() if name.endswith(self.names.bias)}
        return shapes | gates | biases

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan, count = BiasRowMoe.plan(self, decoder, dense), self.moe.num_experts
        numbers = "|".join(map(str, range(count, 2 * count)))
        of_images = (_IMAGES, r".*\.mlp\.gate\.weight_1", rf".*\.mlp\.experts\.({numbers})\..*")
        return replace(plan, ignored=(*plan.ignored, *of_images))


class Router(SoftmaxRouter):
    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        super().__init__(layers, moe, site)
        self._bias = layers.weights.vector(site.block + moe.names.bias)[: moe.moe.num_experts]

    def _gate_of(self, weights: Weights, name: str) -> Callable[[Hidden], Hidden]:
        return weights.transposed(name)


class Family(ernie4_5_moe.Family):
    name = "ernie4_5_vl_moe"
    parse = staticmethod(_parse)
    text = TextIn("model.", tied=True)
