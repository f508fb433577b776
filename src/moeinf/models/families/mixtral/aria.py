"""Aria, the language model of it: softmax over the chosen experts, beside some that all tokens share (AriaText).

Experts were published transposed. Checkpoints hold a model of images beside it, which is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.activations import silu_alone
from moeinf.models.families.ernie.ernie4_5_moe import SoftmaxRouter
from moeinf.models.families.glm import glm4_moe
from moeinf.models.families.glm.glm4_moe import Config
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.deepseek_moe import BlockNames, DeepseekMoe, MakeRouter
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.rope import whole_heads
from moeinf.models.text_part import text_part
from moeinf.types import TensorPlan

_IMAGES = r"(vision_tower|multi_modal_projector)\..*"


def _parse(f: Fields) -> Config:
    silu_alone(f)  # which experts have in any case
    f.present("moe_num_experts", "moe_topk", "moe_num_shared_experts")
    whole_heads(f)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
    num_layers, size = decoder.num_layers, f.count("intermediate_size")
    moe = routed_shape(f, ("moe_num_experts",), f.count("moe_topk"), num_layers)
    shared = f.count("moe_num_shared_experts", 0, minimum=0)
    names = BlockNames(gate="router.weight")
    blocks = DeepseekMoe(
        moe,
        tuple(range(num_layers)),
        size,
        size,
        shared,
        corrected=False,
        names=names,
        mlp_bias=f.flag("mlp_bias", False),
    )
    return Config(decoder, blocks)


class Family(glm4_moe.Family):
    name = "aria"

    def __init__(self, config: dict[str, Any]) -> None:
        text = text_part(config, prefix="language_model.model.")
        c = _parse(text.fields)
        self._take(replace(c, decoder=c.decoder.named(prefix=text.prefix, head_prefix="language_model.")))

    @property
    def router(self) -> MakeRouter:
        return SoftmaxRouter

    @cached_property
    def tensors(self) -> TensorPlan:
        blocks = self._config.blocks.experts(self.decoder).blocks
        names = ("experts.fc1.weight", "experts.fc2.weight")
        size = self._config.blocks.moe_intermediate_size
        plan = self.gated_experts(GatedExperts(blocks, size, None, names, transposed=True))
        return replace(plan, ignored=(*plan.ignored, _IMAGES))
