"""Qwen1.5-MoE and Qwen2-57B-A14B: biased queries, keys and values, a gated shared expert (arXiv 2407.10671, 2.2.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moeinf.laps import Laps
from moeinf.models.decoder import Decoder, DecoderConfig, decoder_shapes, parse_decoder
from moeinf.models.fields import Fields
from moeinf.models.layers import Layers
from moeinf.models.qwen_moe import QwenMoe
from moeinf.types import DType, Experts, ModelInfo, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: QwenMoe

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("use_sliding_window", False, None)
        f.only("attention_bias", False, None)  # its name here is qkv_bias
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
        f.kinds("layer_types", decoder.num_layers, "full_attention")
        attention = replace(decoder.attention, bias=f.flag("qkv_bias", True))
        decoder = replace(decoder, attention=attention)
        return Config(decoder, QwenMoe.parse(f, decoder.num_layers, norm_topk_prob=False))


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    return c.blocks.plan(c.decoder, decoder_shapes(c.decoder))


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return c.blocks.info("qwen2_moe", c.decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, laps: Laps) -> Decoder:
    c = Config.parse(config)
    return Decoder(c.decoder, layers, c.blocks.blocks(c.decoder, layers, experts, laps), experts, laps)
