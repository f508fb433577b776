"""DeepSeek-V3 and R1: latent attention; sigmoid routing with a correction bias within groups (arXiv 2412.19437)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeinf.models.fields import Fields
from moeinf.models.layers.decoder import Decoder, DecoderConfig, outer_shapes
from moeinf.models.layers.deepseek_moe import DeepseekMoe, SigmoidRouter
from moeinf.models.layers.mla import (
    LatentAttention,
    LatentConfig,
    latent_info,
    latent_plan,
    latent_shapes,
    parse_latent,
)
from moeinf.models.layers.protocol import Layers
from moeinf.types import DType, Experts, ModelInfo, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    latent: LatentConfig
    blocks: DeepseekMoe

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("scoring_func", "sigmoid", None)
        f.only("topk_method", "noaux_tc", None)
        f.present("n_group", "routed_scaling_factor")
        decoder, latent = parse_latent(f, interleaved=f.flag("rope_interleave", True))
        blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=True, corrected=True, num_future_layers=1)
        return Config(decoder, latent, blocks)


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    plan = c.blocks.plan(c.decoder, outer_shapes(c.decoder) | latent_shapes(c.decoder, c.latent))
    return latent_plan(plan, c.decoder, c.latent)


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return latent_info(c.blocks.info("deepseek_v3", c.decoder, tensor_plan(config), dtype), c.latent, dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, SigmoidRouter)
    attention = [LatentAttention(layers, c.decoder, c.latent, i) for i in range(c.decoder.num_layers)]
    return Decoder(c.decoder, layers, blocks, experts, profiler, attention)
