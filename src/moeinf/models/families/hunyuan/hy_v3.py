"""Hunyuan 3: Qwen3's attention, sigmoid routing with a correction bias, a shared expert (HYV3ForCausalLM)."""

from __future__ import annotations

from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, MlpForm, Moe, Scoring, Shared, sparse_layers
from moeinf.models.layers.routers import SigmoidRouter

_NAMES = BlockNames(gate="router.gate.weight", bias="expert_bias", shared="shared_mlp.")


def _parse(f: Fields) -> Spec:
    f.only("first_k_dense_replace", 1, None)  # what a missing list of layers means
    f.present("head_dim", "num_shared_experts", "router_scaling_factor")
    decoder = parse_decoder(f, norm_eps=1e-5, theta=11_158_840.0, head_norms=HeadNorms())
    layers = sparse_layers(f, decoder.num_layers, first_dense=1)
    top_k = f.count("num_experts_per_tok")
    blocks = Moe(
        routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers, layers),
        layers,
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        SigmoidRouter,
        scoring=Scoring(scaling=f.number("router_scaling_factor")),
        shared=Shared(f.count("num_shared_experts")),
        form=MlpForm(f.flag("mlp_bias", False)),
        names=_NAMES,
        num_future_layers=f.count("num_nextn_predict_layers", 1, 0, MOST_LAYERS),
    )
    return Spec(decoder, blocks)


class Family(DecoderFamily):
    name = "hy_v3"
    parse = staticmethod(_parse)
    renamed = (
        (r"\.mlp\.gate\.", ".mlp.router.gate."),
        (r"\.mlp\.e_score_correction_bias", ".mlp.expert_bias"),
        (r"\.mlp\.shared_experts\.", ".mlp.shared_mlp."),
    )
