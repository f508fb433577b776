"""DeepSeek-V2 and V2-Lite: latent attention; softmax routing within groups, shared experts (arXiv 2405.04434)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.deepseek_moe import DeepseekMoe, Groups, MakeRouter
from moeinf.models.layers.latent.mla import (
    LatentAttention,
    LatentConfig,
    latent_matrices,
    latent_shapes,
    latent_workspace,
    parse_latent,
)
from moeinf.models.layers.protocol import Experts, Layers, Weights
from moeinf.types import Profiler, TensorPlan, Workspace


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    latent: LatentConfig
    blocks: DeepseekMoe

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("scoring_func", "softmax", None)
        f.only("topk_method", "greedy", "group_limited_greedy", None)
        f.only("rope_interleave", True, None)
        decoder, latent = parse_latent(f, interleaved=True)
        blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=False, corrected=False)
        blocks = replace(blocks, mlp_bias=f.flag("mlp_bias", False))
        if f.get("topk_method") != "group_limited_greedy":
            blocks = replace(blocks, num_groups=1, groups_used=1)
        return Config(decoder, latent, blocks)


class SoftmaxRouter:
    """Softmax over all experts; the groups with the largest scores, and the best k in them (section 2.2.2).

    Weights are scaled where they are not normalised, and only there (published code: MoEGate.forward).
    """

    def __init__(self, weights: Weights, config: DeepseekMoe, block: str, norm: NormConfig) -> None:
        self._config, self._math, self._routing = config, weights.math, weights.routing
        self._norm, self._gate = weights.norm(norm), weights.linear(block + config.names.gate)
        self._groups = Groups(weights.math, config)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        c, math = self._config, self._math
        hidden = self._norm(x)
        kept = self._groups.kept(math.softmax(self._gate(hidden)), self._best, 0.0)
        ids = math.top_k(kept, c.moe.top_k)
        weights = math.take(kept, ids)
        if c.normalise and c.moe.top_k > 1:
            weights = weights / (math.sum(weights, -1, True) + 1e-20)
        else:
            weights = weights * c.scaling
        routing = self._routing(ids, weights)
        return hidden, routing

    def _best(self, grouped: Array) -> Array:
        return self._math.max(grouped, -1, False)


class Family(DecoderFamily):
    """What DeepSeek-V2 and its successors share; a successor has fields and a router of its own."""

    name = "deepseek_v2"
    parse = staticmethod(Config.parse)

    def __init__(self, config: dict[str, Any]) -> None:
        self._take(self.parse(Fields(config)))

    def _take(self, c: Config) -> None:
        self._config = c
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts

    @property
    def router(self) -> MakeRouter:
        return SoftmaxRouter

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, self.router)
        attention = [LatentAttention(layers, c.decoder, self.latent_of(i), i) for i in range(c.decoder.num_layers)]
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def latent_of(self, layer: int) -> LatentConfig:
        """The attention of a decoder layer."""
        return self._config.latent

    def attention_shapes(self) -> Shapes:
        shapes: Shapes = {}
        for i in range(self.decoder.num_layers):
            shapes |= latent_shapes(self.decoder, self.latent_of(i), i)
        return shapes

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = latent_matrices(self.gated_experts(self._config.blocks.experts(self.decoder)))
        return self._config.blocks.with_future_layers(plan, self.decoder)

    @property
    def attention_workspace(self) -> Workspace:
        kinds = {self.latent_of(i): None for i in range(self.decoder.num_layers)}
        return reduce(or_, (latent_workspace(self.decoder, kind) for kind in kinds))

    @property
    def cache_numbers(self) -> int:
        return sum(self.latent_of(i).row_numbers for i in range(self.decoder.num_layers))
