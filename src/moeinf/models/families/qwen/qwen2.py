"""Qwen2 and Qwen2.5: Llama with biased queries, keys and values (arXiv 2407.10671, 2412.15115)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder, sliding_layers


class Family(DecoderFamily):
    name = "qwen2"

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("attention_bias", False, None)  # queries, keys and values have one in any case, and outputs none
        decoder = with_windows_above(f, parse_decoder(f, norm_eps=1e-6, theta=1e4, bias=True))
        return Spec(decoder, dense_mlps(f, decoder))


def with_windows_above(f: Fields, decoder: DecoderConfig) -> DecoderConfig:
    """Where layer_types is not said, the layers from max_window_layers on have a window, if any have."""
    window = None
    if f.flag("use_sliding_window", False):
        window = f.count("sliding_window", 0 if "sliding_window" in f else 4096) or None
    first = f.count("max_window_layers", 28, minimum=0)
    slides = sliding_layers(f, decoder.num_layers, lambda i: window is not None and i >= first)
    return decoder.with_windows(slides, window)
