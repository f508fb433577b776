"""Granite 3 without experts: Llama with four multipliers (arXiv 2408.13359 has them; GraniteForCausalLM)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.families.mixtral.granitemoe import granite_decoder
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec


class Family(DecoderFamily):
    name = "granite"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = granite_decoder(f)
        return Spec(decoder, dense_mlps(f, decoder, biased=f.flag("mlp_bias", False)))
