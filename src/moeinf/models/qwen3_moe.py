"""Qwen3-MoE: 128 small experts a layer, per-head norms on queries and keys (arXiv 2505.09388)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.laps import Laps
from moeinf.models.decoder import Decoder, DecoderConfig, MoeBlock, decoder_shapes, parse_decoder
from moeinf.models.fields import Fields
from moeinf.models.layers import Block, Layers, mlp_shapes
from moeinf.models.moe_plan import gated_experts_plan, plan_info
from moeinf.types import DType, Experts, ModelInfo, MoeShape, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    moe_layers: tuple[int, ...]  # decoder layers that have experts; the others a dense MLP
    intermediate_size: int  # of the dense MLPs
    moe_intermediate_size: int
    norm_topk_prob: bool

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("use_sliding_window", False, None)
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, qk_norm="head")
        step, dense_only = f.count("decoder_sparse_step", 1), f.layers("mlp_only_layers")
        moe_layers = tuple(i for i in range(decoder.num_layers) if i not in dense_only and (i + 1) % step == 0)
        if not moe_layers:
            raise CheckpointError("config.json: decoder_sparse_step and mlp_only_layers leave no layer with experts")
        moe = MoeShape(len(moe_layers), f.count_of("num_experts", "num_local_experts"), f.count("num_experts_per_tok"))
        return Config(decoder, moe, moe_layers, f.count("intermediate_size", decoder.attention.hidden_size),
                      f.count("moe_intermediate_size"), f.flag("norm_topk_prob", False))


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    hidden = c.decoder.attention.hidden_size
    dense = decoder_shapes(c.decoder)
    for i in range(c.decoder.num_layers):
        if i in c.moe_layers:
            dense[f"model.layers.{i}.mlp.gate.weight"] = (c.moe.num_experts, hidden)
        else:
            dense |= mlp_shapes(hidden, c.intermediate_size, f"model.layers.{i}.mlp.")
    blocks = [f"model.layers.{i}.mlp." for i in c.moe_layers]
    names = ("gate_proj", "up_proj", "down_proj")
    return gated_experts_plan(c.decoder, c.moe, dense, blocks, c.moe_intermediate_size, names)


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    return plan_info("qwen3_moe", Config.parse(config).decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, laps: Laps) -> Decoder:
    c = Config.parse(config)
    eps, blocks = c.decoder.attention.norm_eps, list[Block]()
    for i in range(c.decoder.num_layers):
        prefix, norm = f"model.layers.{i}.mlp.", f"model.layers.{i}.post_attention_layernorm.weight"
        if i in c.moe_layers:
            router = layers.softmax_router(f"{prefix}gate.weight", norm, eps, c.moe.top_k, c.norm_topk_prob)
            blocks.append(MoeBlock(c.moe_layers.index(i), router, experts, laps))
        else:
            blocks.append(layers.gated_mlp(prefix, norm, eps))
    return Decoder(c.decoder, layers, blocks, experts, laps)
