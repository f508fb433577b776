"""Qwen3.5-MoE and Qwen3.6-MoE: Qwen3-Next with DeltaNet's projections apart, and a tower that sees pictures."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.qwen import qwen3_next
from moeinf.models.families.qwen.qwen3_next import parse_next
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.vision.picture_positions import turned_by_pictures
from moeinf.models.layers.vision.qwen_vision import qwen_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import VISION, text_part
from moeinf.types import JsonObject


def parse(config: JsonObject) -> Spec:
    text = text_part(config)
    text.fields.only("attn_output_gate", True, None)
    text.fields.only("output_gate_type", "swish", "silu", None)
    text.fields.fixed(norm_topk_prob=True, mlp_only_layers=[], decoder_sparse_step=1)
    c = parse_next(text.fields, stacked=False)
    attention = replace(c.decoder.attention, rope=turned_by_pictures(config, c.decoder.attention.rope, [11, 11, 10]))
    return replace(c, decoder=replace(c.decoder.named(prefix=text.prefix), attention=attention))


class Family(qwen3_next.Family):
    name = "qwen3_5_moe"
    ignored = (VISION,)

    def __init__(self, config: JsonObject) -> None:
        self.take(parse(config))
        self.vision, self.no_vision = seeing(lambda: qwen_vision(config, self.decoder, (248053, 248056, 248054)))
