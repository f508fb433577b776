"""Qwen3-MoE: 128 small experts a layer, per-head norms on queries and keys (arXiv 2505.09388)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeinf.models.fields import Fields
from moeinf.models.layers.decoder import Decoder, DecoderConfig, decoder_shapes, parse_decoder
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.qwen_moe import QwenMoe
from moeinf.types import DType, Experts, ModelInfo, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: QwenMoe

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        window = None
        if f.flag("use_sliding_window", False):  # null is no window
            window = f.count("sliding_window", 0 if "sliding_window" in config else 4096) or None
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, qk_norm="head", window=window)
        return Config(decoder, QwenMoe.parse(f, decoder.num_layers, norm_topk_prob=False, shared=False))


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    return c.blocks.plan(c.decoder, decoder_shapes(c.decoder))


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return c.blocks.info("qwen3_moe", c.decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    return Decoder(c.decoder, layers, c.blocks.blocks(c.decoder, layers, experts, profiler), experts, profiler)
