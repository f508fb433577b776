"""SmolLM3: Llama, in which every fourth layer has no positions."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder, sliding_layers


class Family(DecoderFamily):
    name = "smollm3"

    @staticmethod
    def parse(f: Fields) -> Spec:
        f = f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True))
        decoder = parse_decoder(f, norm_eps=1e-6, theta=2e6)
        every, layers = f.count("no_rope_layer_interval", 4), range(decoder.num_layers)
        turned = [bool((i + 1) % every) for i in layers]
        if f.get("no_rope_layers") is not None:  # 1 where there are positions
            turned = [bool(each) for each in f.counts("no_rope_layers", decoder.num_layers)]
        window = (f.count("sliding_window", 0) or None) if f.flag("use_sliding_window", False) else None
        slides = sliding_layers(f, decoder.num_layers, lambda i: window is not None and not turned[i])
        decoder = decoder.without_positions([i for i in layers if not turned[i]]).with_windows(slides, window)
        return Spec(decoder, dense_mlps(f, decoder, biased=f.flag("mlp_bias", False)))
