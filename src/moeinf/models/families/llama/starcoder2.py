"""StarCoder2: layer norms, biases, and MLPs without a gate (arXiv 2402.19173)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.activations import activation_of
from moeinf.models.families.llama.dense_mlps import PLAIN, dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Sight
from moeinf.models.layers.decoder import parse_decoder


class Family(DecoderFamily):
    name = "starcoder2"

    @staticmethod
    def parse(f: Fields) -> Spec:
        biased = f.flag("use_bias", True)
        f = f.replaced(
            tie_word_embeddings=f.flag("tie_word_embeddings", True),
            rms_norm_eps=f.number("norm_epsilon", 1e-5, zero=True),
        )
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=1e4,
            norm="layer",
            bias=biased,
            output_bias=biased,
            sight=Sight(f.count("sliding_window", 0) or None),
        )
        decoder = replace(decoder, activation=activation_of(f, "hidden_act", "gelu_tanh"))
        names = replace(PLAIN, experts=("", "c_fc", "c_proj"))
        return Spec(decoder, dense_mlps(f, decoder, names, biased=biased, gated=False))
