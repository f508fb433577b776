"""Granite 3 MoE and PowerMoE: Mixtral with four multipliers (arXiv 2408.13359, and GraniteMoeForCausalLM)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moeinf.models.fields import Fields, moe_shape
from moeinf.models.layers.decoder import Decoder, DecoderConfig, MoeBlock, decoder_shapes, parse_decoder
from moeinf.models.layers.moe_plan import gated_experts_plan, plan_info
from moeinf.models.layers.protocol import Layers
from moeinf.types import DType, Experts, ModelInfo, MoeShape, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    intermediate_size: int

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("activation_function", "silu", None)  # another name of hidden_act, in PowerMoE
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, scale=f.number("attention_multiplier", 1.0))
        decoder = replace(
            decoder,
            embedding_scale=f.number("embedding_multiplier", 1.0),
            residual=f.number("residual_multiplier", 1.0),
            logits_scale=1 / f.number("logits_scaling", 1.0),
        )
        experts = f.count_of("num_local_experts", "num_experts")
        moe = moe_shape(decoder.num_layers, experts, f.count("num_experts_per_tok"))
        return Config(decoder, moe, f.count("intermediate_size"))


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    blocks = [f"model.layers.{i}.block_sparse_moe." for i in range(c.decoder.num_layers)]
    dense = decoder_shapes(c.decoder)
    dense |= {f"{block}router.layer.weight": (c.moe.num_experts, c.decoder.attention.hidden_size) for block in blocks}
    plan = gated_experts_plan(
        c.decoder, c.moe, dense, blocks, c.intermediate_size, None, ("input_linear.weight", "output_linear.weight")
    )
    return replace(
        plan,
        renamed={
            r"\.experts\.gate_up_proj$": ".input_linear.weight",
            r"\.router\.weight$": ".router.layer.weight",
            r"\.experts\.down_proj$": ".output_linear.weight",
        },
    )


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    return plan_info("granitemoe", Config.parse(config).decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    eps, blocks = c.decoder.attention.norm_eps, []
    for i in range(c.decoder.num_layers):
        gate = f"model.layers.{i}.block_sparse_moe.router.layer.weight"
        norm = f"model.layers.{i}.post_attention_layernorm.weight"
        # softmax over the chosen logits, as published, is the normalised choice of a softmax over all
        router = layers.softmax_router(gate, norm, eps, c.moe.top_k, normalise=True)
        blocks.append(MoeBlock(i, router, experts, profiler, residual=c.decoder.residual))
    return Decoder(c.decoder, layers, blocks, experts, profiler)
