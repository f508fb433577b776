"""Qwen1.5-MoE and Qwen2-57B-A14B: biased queries, keys and values, a gated shared expert (arXiv 2407.10671, 2.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.qwen_moe import QwenMoe
from moeinf.types import Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: QwenMoe

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("attention_bias", False, None)  # its name here is qkv_bias
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, bias=f.flag("qkv_bias", True))
        decoder = decoder.with_windows(_windows(f, decoder.num_layers))
        return Config(decoder, QwenMoe.parse(f, decoder.num_layers, norm_topk_prob=False))


def _windows(f: Fields, num_layers: int) -> list[int | None]:
    """Of each layer: where layer_types is not said, every other one has a window, of the first max_window_layers."""
    if not f.flag("use_sliding_window", False):
        f.kinds("layer_types", num_layers, "full_attention")
        return [None] * num_layers
    window, first = f.count("sliding_window", 4096), f.count("max_window_layers", 28, minimum=0)
    kinds = f.kinds("layer_types", num_layers, "full_attention", "sliding_attention")
    slides = [i % 2 == 0 and i < first for i in range(num_layers)]
    if kinds is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    return [window if each else None for each in slides]


class Family(DecoderFamily):
    """What Qwen2-MoE and Qwen3-MoE share; the second has fields of its own."""

    name = "qwen2_moe"
    parse = staticmethod(Config.parse)

    def __init__(self, config: dict[str, Any]) -> None:
        self._take(self.parse(Fields(config)))

    def _take(self, c: Config) -> None:
        self._config = c
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
