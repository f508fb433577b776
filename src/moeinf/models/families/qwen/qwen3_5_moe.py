"""Qwen3.5-MoE and Qwen3.6-MoE: Qwen3-Next with DeltaNet's projections apart, and a tower that sees pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.models.families.qwen import qwen3_next
from moeinf.models.families.qwen.qwen3_next import parse_next
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.rope import Rope, rope_fields
from moeinf.models.layers.vision.merging_tower import MergingConfig, MergingTower
from moeinf.models.layers.vision.vision import Vision, seeing
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


def turned_by_pictures(config: JsonObject, rope: Rope | None, default: list[int]) -> Rope | None:
    """The positions of text, of which pictures turn some frequencies by their rows and columns, one in three.

    default: how many turn by time, rows and columns.
    """
    if rope is None or config.get("vision_config") is None:
        return rope
    f = rope_fields(Fields(config).within("text_config"))
    f.only("mrope_interleaved", True, None)
    sections = f.counts("mrope_section", 3) if f.get("mrope_section") is not None else default
    axes = np.zeros(len(rope.frequencies), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return replace(rope, axes=axes)


def merging_vision(
    config: JsonObject, decoder: DecoderConfig, ids: tuple[int, int, int], *, deep: bool = False
) -> Vision | None:
    """ids: those of the start, a picture and the end, where config.json has none; deep: layers may be given rows."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    hidden_size, most_deep = decoder.attention.hidden_size, decoder.num_layers if deep else 0
    tower = MergingConfig.parse(f.within("vision_config"), hidden_size, most_deep)
    start, end = f.count("vision_start_token_id", ids[0]), f.count("vision_end_token_id", ids[2])
    return Vision(
        MergingTower(tower, "model.visual."),
        tower.form,
        f.count("image_token_id", ids[1]),
        tower.merge**2,
        (start, end),
    )


class Family(qwen3_next.Family):
    name = "qwen3_5_moe"
    ignored = (VISION,)

    def __init__(self, config: JsonObject) -> None:
        self.take(parse(config))
        self.vision, self.no_vision = seeing(lambda: merging_vision(config, self.decoder, (248053, 248056, 248054)))
