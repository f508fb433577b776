"""GLM-4.5 and 4.6: grouped-query attention, half of each head turned; DeepSeek-V3's routing (arXiv 2508.06471)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeinf.models.fields import Fields
from moeinf.models.layers.decoder import Decoder, DecoderConfig, decoder_shapes, parse_decoder
from moeinf.models.layers.deepseek_moe import DeepseekMoe, SigmoidRouter
from moeinf.models.layers.protocol import Layers
from moeinf.types import DType, Experts, ModelInfo, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: DeepseekMoe

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("scoring_func", "sigmoid", None)
        f.only("topk_method", "noaux_tc", None)
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=1e4,
            partial=0.5,
            output_bias=False,
            qk_norm="head" if f.flag("use_qk_norm", False) else "none",
        )
        blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=True, corrected=True, num_future_layers=1)
        return Config(decoder, blocks)


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    return c.blocks.plan(c.decoder, decoder_shapes(c.decoder))


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return c.blocks.info("glm4_moe", c.decoder, tensor_plan(config), dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, SigmoidRouter)
    return Decoder(c.decoder, layers, blocks, experts, profiler)
