"""GLM-4-9B and GLM-Edge: half of each head rotated, in pairs side by side; gate and up in one matrix."""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import FUSED, dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.rope import partial_rotary, rope_of


def glm_decoder(f: Fields) -> DecoderConfig:
    head_dim = f.count("head_dim", 128, minimum=2)
    rotary_dim = partial_rotary(f, head_dim, 0.5)
    rope = rope_of(f, rotary_dim, 1e4, f.count("max_position_embeddings"), interleaved=True)
    biased = f.flag("attention_bias", True)
    eps = 1.5625e-07
    return parse_decoder(f, norm_eps=eps, theta=1e4, rope=rope, head_dim=head_dim, bias=biased, output_bias=False)


class Family(DecoderFamily):
    name = "glm"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = glm_decoder(f)
        return Spec(decoder, dense_mlps(f, decoder, FUSED))
