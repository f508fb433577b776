"""Mixtral 8x7B and 8x22B: every layer has 8 experts, each token takes 2 (arXiv 2401.04088)."""

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
        f.only("attention_bias", False, None)
        decoder = parse_decoder(f, norm_eps=1e-5, theta=1e6, window=f.count("sliding_window", 0) or None)
        experts = f.count_of("num_local_experts", "num_experts")
        moe = moe_shape(decoder.num_layers, experts, f.count("num_experts_per_tok"))
        return Config(decoder, moe, f.count("intermediate_size"))


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    blocks = [f"model.layers.{i}.block_sparse_moe." for i in range(c.decoder.num_layers)]
    dense = decoder_shapes(c.decoder)
    dense |= {f"{block}gate.weight": (c.moe.num_experts, c.decoder.attention.hidden_size) for block in blocks}
    plan = gated_experts_plan(c.decoder, c.moe, dense, blocks, c.intermediate_size, ("w1", "w3", "w2"))
    return replace(plan, renamed={r"\.mlp\.": ".block_sparse_moe."})


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    return plan_info("mixtral", Config.parse(config).decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    eps, blocks = c.decoder.attention.norm_eps, []
    for i in range(c.decoder.num_layers):
        gate = f"model.layers.{i}.block_sparse_moe.gate.weight"
        norm = f"model.layers.{i}.post_attention_layernorm.weight"
        router = layers.softmax_router(gate, norm, eps, c.moe.top_k, normalise=True)
        blocks.append(MoeBlock(i, router, experts, profiler))
    return Decoder(c.decoder, layers, blocks, experts, profiler)
