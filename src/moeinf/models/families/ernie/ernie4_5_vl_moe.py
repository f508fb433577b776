"""ERNIE 4.5 VL, the language model of it: ERNIE 4.5's, with its gates transposed (Ernie4_5_VLMoe).

Each layer has as many experts again for images, of another size. No token of a text is routed to them: they, their
gates and the model of images are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.families.ernie import ernie4_5_moe
from moeinf.models.families.ernie.ernie4_5_moe import SoftmaxRouter, parse_with
from moeinf.models.families.glm.glm4_moe import Config
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.deepseek_moe import DeepseekMoe, MakeRouter, sparse_layers
from moeinf.models.layers.protocol import Weights
from moeinf.models.layers.rope import rope_fields, whole_heads
from moeinf.models.text_part import text_part
from moeinf.types import TensorPlan

_IMAGES = r"model\.(vision_model|resampler_model)\..*"


def _parse(f: Fields) -> Config:
    f.present("moe_intermediate_size")
    whole_heads(f)
    rope_fields(f).only("rope_type", "default", None)
    layers = sparse_layers(f, f.count("num_hidden_layers", maximum=MOST_LAYERS), first_dense=1)
    of_text, _ = f.counts("moe_intermediate_size", 2)
    return parse_with(f.replaced(moe_intermediate_size=of_text), layers)


class Router(SoftmaxRouter):
    """The gate is stored as [hidden, experts], the bias as [2, experts]: of text, then of images."""

    def __init__(self, weights: Weights, config: DeepseekMoe, block: str, norm: NormConfig) -> None:
        super().__init__(weights, config, block, norm)
        self._bias = weights.vector(block + config.names.bias)[: config.moe.num_experts]

    def _gate_of(self, weights: Weights, name: str) -> Callable[[Hidden], Hidden]:
        return weights.transposed(name)


class Family(ernie4_5_moe.Family):
    name = "ernie4_5_vl_moe"
    parse = staticmethod(_parse)

    def __init__(self, config: dict[str, Any]) -> None:
        text = text_part({"tie_word_embeddings": True} | config, prefix="model.")
        self._take(self.parse(text.fields))

    @property
    def router(self) -> MakeRouter:
        return Router

    def block_shapes(self) -> Shapes:
        names, shapes = self._config.blocks.names, super().block_shapes()
        gates = {name: shape[::-1] for name, shape in shapes.items() if name.endswith(names.gate)}
        biases = {name: (2, *shape[1:]) for name, shape in shapes.items() if name.endswith(names.bias)}
        return shapes | gates | biases

    @cached_property
    def tensors(self) -> TensorPlan:
        plan, count = super().tensors, self.moe.num_experts
        numbers = "|".join(map(str, range(count, 2 * count)))
        of_images = (_IMAGES, r".*\.mlp\.gate\.weight_1", rf".*\.mlp\.experts\.({numbers})\..*")
        return replace(plan, ignored=(*plan.ignored, *of_images))
