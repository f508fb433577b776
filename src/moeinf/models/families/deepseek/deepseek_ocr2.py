"""DeepSeek-OCR 2, the language model of it: DeepSeek-V2's blocks under common attention (DeepseekOcr2 in transformers).

Checkpoints hold a model of images beside it, which is left out.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import MlpForm, Moe, sparse_layers
from moeinf.models.layers.rope import whole_heads
from moeinf.models.layers.routers import GroupedSoftmaxRouter
from moeinf.models.text_part import TextIn

_IMAGES = r"model\.(sam_model|qwen2_model|projector|view_seperator|vision_tower|multi_modal_projector)\b.*"


def _parse(f: Fields) -> Spec:
    f.only("topk_method", "greedy", "group_limited_greedy", None)
    f.fixed(norm_topk_prob=False, head_dim=f.count("hidden_size") // f.count("num_attention_heads"))
    f.present("mlp_layer_types", "num_experts_per_tok")
    whole_heads(f)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
    layers = sparse_layers(f, decoder.num_layers, first_dense=0)
    blocks = Moe.parse(
        f, decoder.num_layers, router=GroupedSoftmaxRouter, normalise=False, corrected=False, moe_layers=layers
    )
    blocks = replace(blocks, form=MlpForm(f.flag("mlp_bias", False)))
    if f.get("topk_method") != "group_limited_greedy":
        blocks = blocks.without_groups()
    return Spec(decoder, blocks)


class Family(DecoderFamily):
    name = "deepseek_ocr2"
    parse = staticmethod(_parse)
    text = TextIn("model.")
    ignored = (_IMAGES,)
