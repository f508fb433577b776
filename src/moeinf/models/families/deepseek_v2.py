"""DeepSeek-V2 and V2-Lite: latent attention; softmax routing within groups, shared experts (arXiv 2405.04434)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.decoder import Decoder, DecoderConfig, outer_shapes
from moeinf.models.layers.deepseek_moe import DeepseekMoe, Groups
from moeinf.models.layers.mla import (
    LatentAttention,
    LatentConfig,
    latent_info,
    latent_plan,
    latent_shapes,
    parse_latent,
)
from moeinf.models.layers.protocol import Layers, Weights
from moeinf.types import DType, Experts, Hidden, ModelInfo, Profiler, Routing, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    latent: LatentConfig
    blocks: DeepseekMoe

    @staticmethod
    def parse(config: dict[str, Any]) -> Config:
        f = Fields(config)
        f.only("scoring_func", "softmax", None)
        f.only("topk_method", "greedy", "group_limited_greedy", None)
        f.only("mlp_bias", False, None)
        f.only("rope_interleave", True, None)
        decoder, latent = parse_latent(f, interleaved=True)
        blocks = DeepseekMoe.parse(f, decoder.num_layers, normalise=False, corrected=False)
        if f.get("topk_method") != "group_limited_greedy":
            blocks = replace(blocks, num_groups=1, groups_used=1)
        return Config(decoder, latent, blocks)


class SoftmaxRouter:
    """Softmax over all experts; the groups with the largest scores, and the best k in them (section 2.2.2).

    Weights are scaled where they are not normalised, and only there (published code: MoEGate.forward).
    """

    def __init__(self, weights: Weights, config: DeepseekMoe, gate: str, norm: str, eps: float) -> None:
        self._config, self._math, self._routing = config, weights.math, weights.routing
        self._norm, self._gate = weights.norm(norm, eps), weights.linear(f"{gate}weight")
        self._groups = Groups(weights.math, config)

    def __call__(self, x: Hidden) -> tuple[Hidden, Routing]:
        c, math = self._config, self._math
        hidden = self._norm(x)
        kept = self._groups.kept(math.softmax(self._gate(hidden)), self._best, 0.0)
        ids = math.top_k(kept, c.moe.top_k)
        weights = math.take(kept, ids)
        if c.normalise and c.moe.top_k > 1:
            weights = weights / (math.sum(weights, -1, True) + 1e-20)
        else:
            weights = weights * c.scaling
        routing: Routing = self._routing(ids, weights)
        return hidden, routing

    def _best(self, grouped: Array) -> Array:
        return self._math.max(grouped, -1, False)


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    c = Config.parse(config)
    plan = c.blocks.plan(c.decoder, outer_shapes(c.decoder) | latent_shapes(c.decoder, c.latent))
    return latent_plan(plan, c.decoder, c.latent)


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    c = Config.parse(config)
    return latent_info(c.blocks.info("deepseek_v2", c.decoder, tensor_plan(config), dtype), c.latent, dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    c = Config.parse(config)
    blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, SoftmaxRouter)
    attention = [LatentAttention(layers, c.decoder, c.latent, i) for i in range(c.decoder.num_layers)]
    return Decoder(c.decoder, layers, blocks, experts, profiler, attention)
