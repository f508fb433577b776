"""Qwen1.5-MoE and Qwen2-57B-A14B: biased queries, keys and values, a gated shared expert (arXiv 2407.10671, 2.2.2)."""

from __future__ import annotations

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, Scoring, Shared
from moeinf.models.layers.routers import softmax_router

_NAMES = BlockNames(shared="shared_expert.", shared_gate="shared_expert_gate.weight")


def parse(f: Fields) -> Spec:
    f.only("attention_bias", False, None)  # its name here is qkv_bias
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, bias=f.flag("qkv_bias", True))
    decoder = decoder.with_windows(*_windows(f, decoder.num_layers))
    return Spec(decoder, qwen_moe(f, decoder.num_layers, norm_topk_prob=False))


def qwen_moe(f: Fields, num_layers: int, *, norm_topk_prob: bool, shared: bool = True) -> Moe:
    """The blocks of Qwen's families. norm_topk_prob: the family's default; shared: whether it has a shared expert."""
    step, dense_only = f.count("decoder_sparse_step", 1), f.layers("mlp_only_layers")
    moe_layers = tuple(i for i in range(num_layers) if i not in dense_only and (i + 1) % step == 0)
    if not moe_layers:
        raise CheckpointError("config.json: decoder_sparse_step and mlp_only_layers leave no layer with experts")
    size, all_sparse = f.count("shared_expert_intermediate_size") if shared else 0, len(moe_layers) == num_layers
    return Moe(
        routed_shape(f, ("num_experts", "num_local_experts"), f.count("num_experts_per_tok"), num_layers, moe_layers),
        moe_layers,
        f.count("intermediate_size", 0 if all_sparse else None, minimum=0 if all_sparse else 1),
        f.count("moe_intermediate_size"),
        softmax_router,
        scoring=Scoring(f.flag("norm_topk_prob", norm_topk_prob), corrected=False),
        shared=Shared(1 if size else 0, size),
        names=_NAMES,
    )


def _windows(f: Fields, num_layers: int) -> tuple[list[bool], int | None]:
    """Of each layer: where layer_types is not said, every other one has a window, of the first max_window_layers."""
    if not f.flag("use_sliding_window", False):
        f.kinds("layer_types", num_layers, "full_attention")
        return [False] * num_layers, None
    window, first = f.count("sliding_window", 4096), f.count("max_window_layers", 28, minimum=0)
    kinds = f.kinds("layer_types", num_layers, "full_attention", "sliding_attention")
    slides = [i % 2 == 0 and i < first for i in range(num_layers)]
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    return slides, window


class Family(DecoderFamily):
    name = "qwen2_moe"
    parse = staticmethod(parse)
