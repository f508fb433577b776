"""DeepSeek-OCR 2, the language model of it: DeepSeek-V2's blocks under common attention (DeepseekOcr2 in transformers).

Checkpoints hold a model of images beside it, which is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.families.deepseek.deepseek_v2 import SoftmaxRouter
from moeinf.models.families.glm import glm4_moe
from moeinf.models.families.glm.glm4_moe import Config
from moeinf.models.fields import Fields
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.deepseek_moe import DeepseekMoe, MakeRouter, sparse_layers
from moeinf.models.layers.rope import whole_heads
from moeinf.models.text_part import text_part
from moeinf.types import TensorPlan

_IMAGES = r"model\.(sam_model|qwen2_model|projector|view_seperator|vision_tower|multi_modal_projector)\b.*"


def _parse(f: Fields) -> Config:
    for name, *allowed in (
        ("topk_method", "greedy", "group_limited_greedy"),
        ("norm_topk_prob", False),
        ("head_dim", f.count("hidden_size") // f.count("num_attention_heads")),
    ):
        f.only(name, *allowed, None)
    f.present("mlp_layer_types", "num_experts_per_tok")
    whole_heads(f)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
    layers = sparse_layers(f, decoder.num_layers, first_dense=0)
    blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=False, corrected=False, moe_layers=layers)
    blocks = replace(blocks, mlp_bias=f.flag("mlp_bias", False))
    if f.get("topk_method") != "group_limited_greedy":
        blocks = replace(blocks, num_groups=1, groups_used=1)
    return Config(decoder, blocks)


class Family(glm4_moe.Family):
    name = "deepseek_ocr2"

    def __init__(self, config: dict[str, Any]) -> None:
        text = text_part(config, prefix="model.")
        self._take(_parse(text.fields))

    @property
    def router(self) -> MakeRouter:
        return SoftmaxRouter

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = super().tensors
        return replace(plan, ignored=(*plan.ignored, _IMAGES))
