"""OLMoE: 64 experts a layer, 8 a token, norms over whole queries and keys (arXiv 2409.02060)."""

from __future__ import annotations

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Projections
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import all_routed
from moeinf.models.layers.routers import softmax_router


class Family(DecoderFamily):
    name = "olmoe"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=1e4,
            head_norms=HeadNorms("full"),
            projections=Projections(clip=f.number("clip_qkv", 0.0) or None),
        )
        moe = routed_shape(f, ("num_experts", "num_local_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
        normalise = f.flag("norm_topk_prob", False)
        return Spec(decoder, all_routed(moe, f.count("intermediate_size"), softmax_router, normalise=normalise))
