"""Llama 2 and 3, and whatever has their config.json (arXiv 2307.09288, 2407.21783)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder


class Family(DecoderFamily):
    name = "llama"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
        return Spec(decoder, dense_mlps(f, decoder, biased=f.flag("mlp_bias", False)))
