"""Mixtral 8x7B and 8x22B: every layer has 8 experts, each token takes 2 (arXiv 2401.04088)."""

from __future__ import annotations

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Sight
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, all_routed
from moeinf.models.layers.routers import softmax_router

NAMES = BlockNames("block_sparse_moe.", experts=("w1", "w3", "w2"))


class Family(DecoderFamily):
    name = "mixtral"
    renamed = ((r"\.mlp\.", ".block_sparse_moe."),)

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("attention_bias", False, None)
        decoder = parse_decoder(f, norm_eps=1e-5, theta=1e6, sight=Sight(f.count("sliding_window", 0) or None))
        moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
        return Spec(decoder, all_routed(moe, f.count("intermediate_size"), softmax_router, names=NAMES))
