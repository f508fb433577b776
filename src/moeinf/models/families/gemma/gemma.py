"""Gemma 1: Llama with scaled embeddings, and weights of norms that are stored less one (arXiv 2403.08295)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeinf.models.activations import activation_of
from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder


def gemma_decoder(f: Fields, act: str, **features: Any) -> DecoderConfig:
    """act: the field that names the activation; features: as parse_decoder has them."""
    f.only("use_bidirectional_attention", False, None)
    f = f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True))
    head_dim = f.count("head_dim", 256, minimum=2)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, norm="rms+1", head_dim=head_dim, **features)
    return replace(
        decoder, activation=activation_of(f, act, "gelu_tanh"), embedding_scale=decoder.attention.hidden_size**0.5
    )


class Family(DecoderFamily):
    name = "gemma"

    @staticmethod
    def parse(f: Fields) -> Spec:
        if f.get("hidden_act") == "gelu":  # as published, and meant otherwise
            f = f.replaced(hidden_act="gelu_pytorch_tanh")
        decoder = gemma_decoder(f, "hidden_act")
        return Spec(decoder, dense_mlps(f, decoder))
