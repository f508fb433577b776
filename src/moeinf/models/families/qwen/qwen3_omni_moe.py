"""Qwen3-Omni: Qwen3-MoE that writes, with the tower of Qwen3-VL, under other names of tensors (arXiv 2509.17765).

Checkpoints hold models that hear (`thinker.audio_tower.*`) and speak (`talker.*`, `code2wav.*`) beside it, which are
left out: what it writes is the text that would be spoken.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.vision.picture_positions import turned_by_pictures
from moeinf.models.layers.vision.qwen_vision import QwenNames, qwen_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject

_OTHERS = r"(thinker\.(audio_tower|visual)|talker|code2wav)\..*"
_NAMES = QwenNames("thinker.visual.", "merger_list", "ln_q", ("mlp.0", "mlp.2"))


def _thinker(config: JsonObject) -> JsonObject:
    """The part that writes, with what is said of the whole."""
    Fields(config).within("thinker_config")
    whole: JsonObject = {"text_config": {}} | (config.get("thinker_config") or {})
    if "quantization_config" in config:
        whole["quantization_config"] = config["quantization_config"]
    return whole


def _parse(thinker: JsonObject) -> Spec:
    text = text_part(thinker, prefix="thinker.model.")
    f = text.fields
    f.only("use_sliding_window", False, None)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e6, head_norms=HeadNorms())
    decoder = decoder.named(prefix=text.prefix, head_prefix="thinker.")
    rope = turned_by_pictures(thinker, decoder.attention.rope, [24, 20, 20])
    decoder = replace(decoder, attention=replace(decoder.attention, rope=rope))
    return Spec(decoder, qwen_moe(f, decoder.num_layers, norm_topk_prob=True, shared=False))


class Family(DecoderFamily):
    name = "qwen3_omni_moe"
    ignored = (_OTHERS,)

    def __init__(self, config: JsonObject) -> None:
        thinker = _thinker(config)
        self.take(_parse(thinker))
        self.vision, self.no_vision = seeing(
            lambda: qwen_vision(thinker, self.decoder, (151652, 151655, 151653), deep=True, names=_NAMES)
        )
