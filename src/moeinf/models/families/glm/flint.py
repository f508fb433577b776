"""Flint: sigmoid routing without a bias, a shared expert, attention sinks; layers that see all have no positions."""

from __future__ import annotations

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Scores
from moeinf.models.layers.decoder import parse_decoder, sliding_layers
from moeinf.models.layers.moe import BlockNames, Moe, Scoring, Shared
from moeinf.models.layers.routers import SigmoidRouter


def _parse(f: Fields) -> Spec:
    f.present("sliding_window", "mlp_only_layers", "head_dim", "norm_topk_prob")
    if f.get("mlp_only_layers") is None:
        f = f.replaced(mlp_only_layers=[0, 1])  # what transformers takes null for
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms(), scores=Scores(sinks="softmax_offset"))
    layers, window = range(decoder.num_layers), f.count("sliding_window")
    slides = sliding_layers(f, len(layers), lambda i: i >= 2 and i % 4 != 1 and i != len(layers) - 1)
    decoder = decoder.with_windows(slides, window).without_positions({i for i in layers if not slides[i]})
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
