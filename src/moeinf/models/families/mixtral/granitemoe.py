"""Granite 3 MoE and PowerMoE: Mixtral with four multipliers (arXiv 2408.13359, and GraniteMoeForCausalLM)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Scores
from moeinf.models.layers.decoder import DecoderConfig, Logits, parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, all_routed
from moeinf.models.layers.routers import softmax_router

NAMES = BlockNames(
    "block_sparse_moe.", gate="router.layer.weight", experts=None, fused=("input_linear.weight", "output_linear.weight")
)


def granite_decoder(f: Fields, **features: Any) -> DecoderConfig:
    """features: as parse_decoder has them."""
    f.only("activation_function", "silu", None)  # another name of hidden_act, in PowerMoE
    usual = "attention_multiplier" in f and f.get("attention_multiplier") is None  # null: as attention has it
    scale = None if usual else f.number("attention_multiplier", 1.0)
    return replace(
        parse_decoder(f, norm_eps=1e-6, theta=1e4, scores=Scores(scale), **features),
        embedding_scale=f.number("embedding_multiplier", 1.0),
        residual=f.number("residual_multiplier", 1.0),
        logits=Logits(scale=1 / f.number("logits_scaling", 1.0)),
    )


def parse_granite(f: Fields, names: BlockNames = NAMES, **features: Any) -> tuple[DecoderConfig, Moe]:
    decoder = granite_decoder(f, **features)
    moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
    # softmax over the chosen logits, as published, is the normalised choice of a softmax over all
    return decoder, all_routed(moe, f.count("intermediate_size"), softmax_router, names)


class Family(DecoderFamily):
    name = "granitemoe"
    renamed = (
        (r"\.experts\.gate_up_proj$", ".input_linear.weight"),
        (r"\.router\.weight$", ".router.layer.weight"),
        (r"\.experts\.down_proj$", ".output_linear.weight"),
    )

    @staticmethod
    def parse(f: Fields) -> Spec:
        return Spec(*parse_granite(f))
