"""Qwen3-VL-MoE: Qwen3-MoE with experts published transposed, and a tower that sees pictures (arXiv 2511.21631).

Its first layers are given more of a picture, behind each, than the rows that stand for embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.vision.picture_positions import turned_by_pictures
from moeinf.models.layers.vision.qwen_vision import qwen_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import VISION, text_part
from moeinf.types import JsonObject


def _parse(config: JsonObject) -> Spec:
    text = text_part(config)
    f = text.fields
    f.fixed(norm_topk_prob=True, use_sliding_window=False)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=5e5, head_norms=HeadNorms()).named(prefix=text.prefix)
    rope = turned_by_pictures(config, decoder.attention.rope, [24, 20, 20])
    decoder = replace(decoder, attention=replace(decoder.attention, rope=rope))
    blocks = qwen_moe(f, decoder.num_layers, norm_topk_prob=True, shared=False)
    return Spec(decoder, replace(blocks, transposed=True))


class Family(DecoderFamily):
    name = "qwen3_vl_moe"
    ignored = (VISION,)

    def __init__(self, config: JsonObject) -> None:
        self.take(_parse(config))
        self.vision, self.no_vision = seeing(
            lambda: qwen_vision(config, self.decoder, (151652, 151655, 151653), deep=True)
        )
