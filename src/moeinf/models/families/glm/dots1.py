"""dots.llm1: Qwen3's attention, DeepSeek-V3's blocks (arXiv 2506.05767)."""

from __future__ import annotations

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.routers import sigmoid_moe


def _parse(f: Fields) -> Spec:
    f.only("scoring_func", "sigmoid", "noaux_tc", None)  # the second is what the published config says
    f.fixed(topk_method="noaux_tc", moe_layer_freq=1)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms())
    decoder = decoder.with_windows(*_windows(f, decoder.num_layers))
    return Spec(decoder, sigmoid_moe(f, decoder.num_layers, normalise=False))


def _windows(f: Fields, num_layers: int) -> tuple[list[bool], int | None]:
    """Of each layer: where layer_types is not said, those from max_window_layers on have a window."""
    window = f.count("sliding_window", 0 if "sliding_window" in f else 4096) or None
    first = f.count("max_window_layers", 62, minimum=0)
    kinds = f.kinds("layer_types", num_layers, "full_attention", "sliding_attention")
    slides = [i >= first for i in range(num_layers)]
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    return slides, window


class Family(DecoderFamily):
    name = "dots1"
    parse = staticmethod(_parse)
