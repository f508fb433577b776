"""Mistral 7B and what is like it: Llama, where all layers may have a window (arXiv 2310.06825)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Sight
from moeinf.models.layers.decoder import parse_decoder


class Family(DecoderFamily):
    name = "mistral"

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("attention_bias", False, None)
        window = f.count("sliding_window", 0 if "sliding_window" in f else 4096)
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, sight=Sight(window or None))
        return Spec(decoder, dense_mlps(f, decoder))
