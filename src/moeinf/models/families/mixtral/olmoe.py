"""OLMoE: 64 experts a layer, 8 a token, norms over whole queries and keys (arXiv 2409.02060)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.attention_config import MLP_NAMES, HeadNorms, Projections, Shapes
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
    norm_topk_prob: bool

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=1e4,
            head_norms=HeadNorms("full"),
            projections=Projections(clip=f.number("clip_qkv", 0.0) or None),
        )
        moe = routed_shape(f, ("num_experts", "num_local_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
        return Config(decoder, moe, f.count("intermediate_size"), f.flag("norm_topk_prob", False))


class Family(DecoderFamily):
    name = "olmoe"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks = self._config, list[Block]()
        for i, block in enumerate(self._blocks()):
            router = layers.softmax_router(
                f"{block}gate.weight", c.decoder.block_norm(i), c.moe.top_k, normalise=c.norm_topk_prob
            )
            blocks.append(MoeBlock(i, router, experts, profiler))
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def _blocks(self) -> list[str]:
        return [f"model.layers.{i}.mlp." for i in range(self.decoder.num_layers)]

    def block_shapes(self) -> Shapes:
        hidden = self.decoder.attention.hidden_size
        return {f"{block}gate.weight": (self.moe.experts_of(i), hidden) for i, block in enumerate(self._blocks())}

    @cached_property
    def tensors(self) -> TensorPlan:
        return self.gated_experts(GatedExperts(self._blocks(), self._config.intermediate_size, MLP_NAMES))
