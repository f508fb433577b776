"""Qwen3-MoE: 128 small experts a layer, per-head norms on queries and keys (arXiv 2505.09388)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.qwen_moe import QwenMoe
from moeinf.types import Experts, Profiler, TensorPlan


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


class Family(DecoderFamily):
    name = "qwen3_moe"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler)
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        return self.gated_experts(self._config.blocks.experts(self.decoder))
