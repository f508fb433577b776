"""DeepSeek-V3 and R1: latent attention; sigmoid routing with a correction bias within groups (arXiv 2412.19437)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.deepseek_moe import DeepseekMoe, SigmoidRouter
from moeinf.models.layers.mla import (
    LatentAttention,
    LatentConfig,
    latent_matrices,
    latent_shapes,
    latent_workspace,
    parse_latent,
)
from moeinf.models.layers.protocol import Layers
from moeinf.types import Experts, Profiler, TensorPlan, Workspace


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


class Family(DecoderFamily):
    name = "deepseek_v3"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, SigmoidRouter)
        attention = [LatentAttention(layers, c.decoder, c.latent, i) for i in range(c.decoder.num_layers)]
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def attention_shapes(self) -> Shapes:
        return latent_shapes(self.decoder, self._config.latent)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = latent_matrices(self.gated_experts(self._config.blocks.experts(self.decoder)))
        return replace(plan, ignored=plan.ignored + self._config.blocks.future_layers(self.decoder))

    @property
    def attention_workspace(self) -> Workspace:
        return latent_workspace(self.decoder, self._config.latent)

    @property
    def cache_numbers(self) -> int:
        return self.decoder.num_layers * (self._config.latent.rank + self._config.latent.rotary_dim)
