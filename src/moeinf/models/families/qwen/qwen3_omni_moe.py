"""Qwen3-Omni, the language model of it: Qwen3-MoE under other names of tensors (arXiv 2509.17765).

Checkpoints hold models that see, hear (`thinker.visual.*`, `thinker.audio_tower.*`) and speak (`talker.*`,
`code2wav.*`) beside it, which are left out: what it writes is the text that would be spoken.
"""

from __future__ import annotations

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject

_OTHERS = r"(thinker\.(audio_tower|visual)|talker|code2wav)\..*"


def _parse(config: JsonObject) -> Spec:
    Fields(config).within("thinker_config")
    whole = {"text_config": {}} | (config.get("thinker_config") or {})
    if "quantization_config" in config:
        whole["quantization_config"] = config["quantization_config"]
    text = text_part(whole, prefix="thinker.model.")
    f = text.fields
    f.only("use_sliding_window", False, None)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e6, head_norms=HeadNorms())
    decoder = decoder.named(prefix=text.prefix, head_prefix="thinker.")
    return Spec(decoder, qwen_moe(f, decoder.num_layers, norm_topk_prob=True, shared=False))


class Family(DecoderFamily):
    name = "qwen3_omni_moe"
    ignored = (_OTHERS,)

    def __init__(self, config: JsonObject) -> None:
        self.take(_parse(config))
