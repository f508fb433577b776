"""LFM2 MoE: short convolutions in most layers, attention in the others, DeepSeek's routing (Lfm2MoeForCausalLM)."""

from __future__ import annotations

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Projections
from moeinf.models.layers.decoder import LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, Scoring
from moeinf.models.layers.recurrent.short_conv import ShortConvConfig, short_conv_mixer
from moeinf.models.layers.routers import SigmoidRouter

_MATRICES = ("w1", "w3", "w2")  # gate, up and down
_NAMES = BlockNames("feed_forward.", bias="expert_bias", experts=_MATRICES, dense=_MATRICES)


class Router(SigmoidRouter):
    added = 1e-6


def _parse(f: Fields) -> Spec:
    f.only("rms_norm_eps", f.get("norm_eps"), None)  # not what the published code reads
    f.only("attention_bias", False, None)
    eps = f.number("norm_eps", 1e-5, zero=True)
    tied = f.flag("tie_embedding", f.flag("tie_word_embeddings", True))  # the older name counts
    decoder = parse_decoder(
        f.replaced(tie_word_embeddings=tied),
        norm_eps=eps,
        theta=1e6,
        head_norms=HeadNorms(names=("q_layernorm", "k_layernorm")),
        projections=Projections(output="out_proj"),
    )
    decoder = decoder.named(norms=LayerNorms(attention="operator_norm", block="ffn_norm"), last_norm="embedding_norm")
    kinds = f.kinds("layer_types", decoder.num_layers, "conv", "full_attention")
    if kinds is None:
        raise CheckpointError(f"{f.where}: layer_types is missing")
    conv = ShortConvConfig(
        decoder.attention.hidden_size, f.count("conv_L_cache", 3, minimum=2), eps, f.flag("conv_bias", False)
    )
    layers = (i for i, kind in enumerate(kinds) if kind == "conv")
    return Spec(decoder, _parse_blocks(f, decoder.num_layers), dict.fromkeys(layers, short_conv_mixer(conv)))


def _parse_blocks(f: Fields, num_layers: int) -> Moe:
    dense = f.count("num_dense_layers", 2, minimum=0)
    moe_layers = tuple(range(dense, num_layers))
    if not moe_layers:
        raise CheckpointError(f"{f.where}: num_dense_layers is {dense}, which leaves no layer with experts")
    names = ("num_experts", "num_local_experts")
    return Moe(
        routed_shape(f, names, f.count("num_experts_per_tok", 4), num_layers, moe_layers),
        moe_layers,
        f.count("intermediate_size", 7168),
        f.count("moe_intermediate_size", 1792),
        Router,
        scoring=Scoring(
            f.flag("norm_topk_prob", True), f.flag("use_expert_bias", True), f.number("routed_scaling_factor", 1.0)
        ),
        names=_NAMES,
    )


class Family(DecoderFamily):
    name = "lfm2_moe"
    parse = staticmethod(_parse)
    matrices = tuple(f".{each}.weight" for each in _MATRICES)
