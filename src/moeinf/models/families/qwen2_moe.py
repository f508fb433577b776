"""Qwen1.5-MoE and Qwen2-57B-A14B: biased queries, keys and values, a gated shared expert (arXiv 2407.10671, 2.2.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
        f.only("attention_bias", False, None)  # its name here is qkv_bias
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4)
        attention = replace(decoder.attention, bias=f.flag("qkv_bias", True))
        decoder = replace(decoder, attention=attention, windows=_windows(f, decoder.num_layers))
        return Config(decoder, QwenMoe.parse(f, decoder.num_layers, norm_topk_prob=False))


def _windows(f: Fields, num_layers: int) -> tuple[int | None, ...] | None:
    """Of each layer: where layer_types is not said, every other one has a window, of the first max_window_layers."""
    if not f.flag("use_sliding_window", False):
        f.kinds("layer_types", num_layers, "full_attention")
        return None
    window, first = f.count("sliding_window", 4096), f.count("max_window_layers", 28, minimum=0)
    kinds = f.kinds("layer_types", num_layers, "full_attention", "sliding_attention")
    slides = [i % 2 == 0 and i < first for i in range(num_layers)]
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if each else None for each in slides)


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    return c.blocks.plan(c.decoder, decoder_shapes(c.decoder))


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return c.blocks.info("qwen2_moe", c.decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    return Decoder(c.decoder, layers, c.blocks.blocks(c.decoder, layers, experts, profiler), experts, profiler)
