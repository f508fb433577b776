"""MiniMax-M2: sigmoid routing with a correction bias, norms over whole queries and keys (MiniMaxM2ForCausalLM)."""

from __future__ import annotations

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe
from moeinf.models.layers.routers import SigmoidRouter

_NAMES = BlockNames("block_sparse_moe.", bias="e_score_correction_bias", experts=("w1", "w3", "w2"))


def _parse(f: Fields) -> Spec:
    f.fixed(
        attention_bias=False,
        scoring_func="sigmoid",
        use_routing_bias=True,
        use_qk_norm=True,
        qk_norm_type="per_layer",
        shared_intermediate_size=0,
    )
    head_dim = f.count("head_dim", 128, minimum=2)
    partial = f.count("rotary_dim", head_dim) / head_dim
    decoder = parse_decoder(
        f, norm_eps=1e-6, theta=5e6, partial=partial, head_norms=HeadNorms("full"), head_dim=head_dim
    )
    num_layers = decoder.num_layers
    moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), num_layers)
    return Spec(
        decoder, Moe(moe, tuple(range(num_layers)), 0, f.count("intermediate_size"), SigmoidRouter, names=_NAMES)
    )


class Family(DecoderFamily):
    name = "minimax_m2"
    parse = staticmethod(_parse)
    renamed = ((r"\.mlp\.", ".block_sparse_moe."),)
