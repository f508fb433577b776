"""Laguna: sigmoid routing with a correction bias, attention with softplus gates (LagunaForCausalLM).

Layers may differ in their number of heads; those with a window have positions of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import AttentionConfig, Gate, HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, sparse_layers
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import of_kind, own_shares, partial_rotary, rope_of
from moeinf.models.layers.routers import SigmoidRouter, sigmoid_moe
from moeinf.types import JsonObject, TensorPlan

_ROPES: dict[str, JsonObject] = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _parse(f: Fields) -> Spec:
    f.only("rope_theta", None)  # each kind of layer has its own
    f.fixed(decoder_sparse_step=1, norm_topk_prob=True, moe_apply_router_weight_on_input=False)
    f.only("gating", True, "per-head", "per-element", *([] if "gating" in f else [None]))
    f.present("head_dim", "num_experts")
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    _check_ropes(f)
    of_heads = f.get("gating") != "per-element"
    gates = "per_head" if of_heads else "per_element"
    f.kinds("gating_types", f.count("num_hidden_layers", maximum=MOST_LAYERS), gates)
    decoder = parse_decoder(
        of_kind(f, "full_attention"),
        norm_eps=1e-6,
        theta=1e4,
        partial=1.0,
        head_norms=HeadNorms(),
        gate=Gate("g_proj", per_head=of_heads, function="softplus"),
    )
    layers = _attention_of_layers(f, decoder.attention, decoder.num_layers)
    special = {i: each for i, each in enumerate(layers) if each != decoder.attention}
    sparse = sparse_layers(f, decoder.num_layers, first_dense=1)
    f.only("mlp_only_layers", [i for i in range(decoder.num_layers) if i not in sparse], [], None)
    own = f.replaced(n_shared_experts=1, n_group=1, topk_group=1, num_nextn_predict_layers=0, num_mtp_layers=0)
    scaling = own.replaced(routed_scaling_factor=f.number("moe_routed_scaling_factor", 1.0))
    blocks = sigmoid_moe(scaling, decoder.num_layers, moe_layers=sparse)
    names = BlockNames(bias="experts.e_score_correction_bias", shared="shared_expert.")
    cap = f.get("moe_router_logit_softcapping")
    shared = replace(blocks.shared, size=f.count("shared_expert_intermediate_size", 512))
    router = partial(CappedRouter, cap=0.0 if cap in (None, 0) else f.number("moe_router_logit_softcapping"))
    return Spec(
        replace(decoder, special=special),
        replace(blocks, names=names, shared=shared, router=router),
        amended=_without_small_gates,
    )


def _check_ropes(f: Fields) -> None:
    f.within("rope_parameters").refuse_others(*_ROPES, "original_max_position_embeddings")
    own_shares(f, *_ROPES)


def _attention_of_layers(f: Fields, a: AttentionConfig, num_layers: int) -> list[AttentionConfig]:
    heads = [a.num_heads] * num_layers
    if f.get("num_attention_heads_per_layer") is not None:
        heads = f.counts("num_attention_heads_per_layer", num_layers)
        if not all(heads):
            raise CheckpointError(f"{f.where}: num_attention_heads_per_layer leaves a layer no heads")
    kinds = f.kinds("layer_types", num_layers, *_ROPES) or ("full_attention",) * num_layers
    sliding = a
    if "sliding_attention" in kinds:
        own = of_kind(f, "sliding_attention")
        rope = rope_of(own, partial_rotary(own, a.head_dim), 1e4, f.count("max_position_embeddings"))
        sliding = replace(a, rope=rope).seeing(f.count("sliding_window", 512))
    of_kinds = [sliding if kind == "sliding_attention" else a for kind in kinds]
    return [replace(each, num_heads=count) for each, count in zip(of_kinds, heads, strict=True)]


class CappedRouter(SigmoidRouter):
    """Its logits become cap * tanh(logits / cap); 0: they stay."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, cap: float) -> None:
        super().__init__(layers, moe, site)
        self._cap = cap

    def _scores(self, logits: Array) -> Array:
        return self._math.sigmoid(self._math.tanh(logits / self._cap) * self._cap if self._cap else logits)


def _without_small_gates(plan: TensorPlan) -> TensorPlan:
    """Gates with few rows are not quantised."""
    small = {name for name, shape in plan.dense.items() if name.endswith(".g_proj.weight") and shape[0] < 256}
    return replace(plan, matrices=plan.matrices - small)


class Family(DecoderFamily):
    name = "laguna"
    parse = staticmethod(_parse)
