"""DeepSeek-OCR 2, the language model of it: DeepSeek-V2's blocks under common attention (DeepseekOcr2 in transformers).

Checkpoints hold a model of images beside it, which is left out. DeepSeek-OCR has the same language model.
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
from moeinf.types import JsonObject

_IMAGES = (
    r"model\.(sam_model|vision_model|qwen2_model|projector|image_newline|view_seperator|vision_tower|"
    r"multi_modal_projector)\b.*"
)
_PUBLISHED = "deepseek_vl_v2"  # the model_type of both, which they share with DeepSeek-VL2
_OF_OCR = (["DeepseekOCRForCausalLM"], ["DeepseekOCR2ForCausalLM"])  # their architectures


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


def _as_saved(config: JsonObject) -> JsonObject:
    """A published config as transformers saves it."""
    whole = Fields(config)
    whole.only("architectures", *_OF_OCR)
    f = whole.within("language_config")
    f.fixed(use_mla=False, moe_layer_freq=1, scoring_func="softmax")
    num_layers = f.count("num_hidden_layers")
    first_dense = f.count("first_k_dense_replace", 0, minimum=0, maximum=num_layers)
    kinds = ["dense"] * first_dense + ["sparse"] * (num_layers - first_dense)
    return config | {"text_config": f.plain | {"mlp_layer_types": kinds}}


class Family(DecoderFamily):
    name = "deepseek_ocr2"
    parse = staticmethod(_parse)
    text = TextIn("model.")
    ignored = (_IMAGES,)

    def __init__(self, config: JsonObject) -> None:
        super().__init__(_as_saved(config) if config.get("model_type") == _PUBLISHED else config)
