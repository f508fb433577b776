"""ERNIE 4.5 without experts: Llama with rotary pairs side by side (Ernie4_5ForCausalLM)."""

from __future__ import annotations

from moeinf.models.families.ernie.ernie4_5_moe import ernie_decoder
from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec


class Family(DecoderFamily):
    name = "ernie4_5"

    @staticmethod
    def parse(f: Fields) -> Spec:
        f = f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True))
        if "head_dim" not in f:  # null is as many as the hidden size has for each head
            f = f.replaced(head_dim=128)
        return Spec(decoder := ernie_decoder(f), dense_mlps(f, decoder, biased=f.flag("use_bias", False)))
