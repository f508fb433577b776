"""Flint: sigmoid routing without a bias, a shared expert, attention sinks; layers that see all have no positions."""

from __future__ import annotations

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Scores
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, Scoring, Shared
from moeinf.models.layers.routers import SigmoidRouter


def _parse(f: Fields) -> Spec:
    f.present("sliding_window", "mlp_only_layers", "head_dim", "norm_topk_prob")
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms(), scores=Scores(sinks="softmax_offset"))
    layers, window = range(decoder.num_layers), f.count("sliding_window")
    kinds = f.kinds("layer_types", len(layers), "sliding_attention", "full_attention")
    whole = [i < 2 or i % 4 == 1 or i == len(layers) - 1 for i in layers]
    if kinds is not None:
        whole = [kind == "full_attention" for kind in kinds]
    decoder = decoder.with_windows([None if whole[i] else window for i in layers])
    decoder = decoder.without_positions({i for i in layers if whole[i]})
    dense, step = f.layers("mlp_only_layers"), f.count("decoder_sparse_step", 1)
    moe_layers = tuple(i for i in layers if i not in dense and (i + 1) % step == 0)
    if not moe_layers:
        raise CheckpointError("config.json: mlp_only_layers and decoder_sparse_step leave no layer with experts")
    moe = routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), len(layers), moe_layers)
    blocks = Moe(
        moe,
        moe_layers,
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        SigmoidRouter,
        scoring=Scoring(f.flag("norm_topk_prob", True), corrected=False),
        shared=Shared(1, f.count("shared_expert_intermediate_size")),
        names=BlockNames(shared="shared_expert."),
    )
    return Spec(decoder, blocks)


class Family(DecoderFamily):
    name = "flint"
    parse = staticmethod(_parse)
    renamed = ((r"\.self_attn\.sinks", ".self_attn.softmax_offset"),)
