"""Mixtral 8x7B and 8x22B: every layer has 8 experts, each token takes 2 (arXiv 2401.04088)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.attention_config import Shapes, Sight
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.types import MoeShape, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    intermediate_size: int

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("attention_bias", False, None)
        decoder = parse_decoder(f, norm_eps=1e-5, theta=1e6, sight=Sight(f.count("sliding_window", 0) or None))
        moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
        return Config(decoder, moe, f.count("intermediate_size"))


class Family(DecoderFamily):
    name = "mixtral"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks = self._config, list[Block]()
        for i, block in enumerate(self._blocks()):
            router = layers.softmax_router(f"{block}gate.weight", c.decoder.block_norm(i), c.moe.top_k, normalise=True)
            blocks.append(MoeBlock(i, router, experts, profiler))
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def _blocks(self) -> list[str]:
        return [f"model.layers.{i}.block_sparse_moe." for i in range(self.decoder.num_layers)]

    def block_shapes(self) -> Shapes:
        hidden = self.decoder.attention.hidden_size
        return {f"{block}gate.weight": (self.moe.experts_of(i), hidden) for i, block in enumerate(self._blocks())}

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.gated_experts(GatedExperts(self._blocks(), self._config.intermediate_size, ("w1", "w3", "w2")))
        return replace(plan, renamed={r"\.mlp\.": ".block_sparse_moe."})
