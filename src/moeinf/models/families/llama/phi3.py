"""Phi-3, Phi-3.5 and Phi-4: Llama whose projections lie in one matrix, and so gate and up (arXiv 2404.14219)."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import FUSED, dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Projections, Sight
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.rope import rope_fields


class Family(DecoderFamily):
    name = "phi3"

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("attention_bias", False, None)
        rope_fields(f).only("rope_type", "default", "longrope", None)
        trained = "original_max_position_embeddings"
        f = f.replaced(**{trained: f.count(trained, 4096)})  # which counts more than what the positions say
        window = f.count("sliding_window", 0) or None
        projections = Projections(fused="qkv_proj")
        decoder = parse_decoder(f, norm_eps=1e-5, theta=1e4, partial=1.0, projections=projections, sight=Sight(window))
        return Spec(decoder, dense_mlps(f, decoder, FUSED))
