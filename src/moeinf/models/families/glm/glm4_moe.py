"""GLM-4.5 and 4.6: grouped-query attention, half of each head rotated; DeepSeek-V3's routing (arXiv 2508.06471)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import HeadNorms, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.deepseek_moe import DeepseekMoe, MakeRouter, SigmoidRouter
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.types import Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: DeepseekMoe

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("scoring_func", "sigmoid", None)
        f.only("topk_method", "noaux_tc", None)
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=1e4,
            partial=0.5,
            output_bias=False,
            head_norms=HeadNorms() if f.flag("use_qk_norm", False) else None,
        )
        blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=True, corrected=True, num_future_layers=1)
        return Config(decoder, blocks)


class Family(DecoderFamily):
    """What GLM-4.5 and others share that have the common attention and DeepSeek's blocks; each has its own fields."""

    name = "glm4_moe"
    parse = staticmethod(Config.parse)

    def __init__(self, config: dict[str, Any]) -> None:
        self._take(self.parse(Fields(config)))

    def _take(self, c: Config) -> None:
        self._config = c
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts

    @property
    def router(self) -> MakeRouter:
        return SigmoidRouter

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, self.router)
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.gated_experts(self._config.blocks.experts(self.decoder))
        return self._config.blocks.with_future_layers(plan, self.decoder)
