"""GLM-4-0414 and GLM-Z1: GLM with norms behind attention and MLP (Glm4ForCausalLM)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.llama.dense_mlps import FUSED, dense_mlps
from moeinf.models.families.llama.glm import glm_decoder
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import LayerNorms


class Family(DecoderFamily):
    name = "glm4"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = glm_decoder(f).named(norms=LayerNorms(behind_attention="post_self_attn_layernorm"))
        return Spec(decoder, dense_mlps(f, decoder, replace(FUSED, behind="post_mlp_layernorm")))
