"""Granite 3 MoE and PowerMoE: Mixtral with four multipliers (arXiv 2408.13359, and GraniteMoeForCausalLM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import Scores, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, Logits, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Weights
from moeinf.types import MoeShape, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    intermediate_size: int

    shared_intermediate_size: int = 0  # of an MLP that every token is given besides; 0: there is none

    @staticmethod
    def parse(f: Fields, **features: Any) -> Config:
        """features: as parse_decoder has them."""
        f.only("activation_function", "silu", None)  # another name of hidden_act, in PowerMoE
        usual = "attention_multiplier" in f and f.get("attention_multiplier") is None  # null: as attention has it
        scale = None if usual else f.number("attention_multiplier", 1.0)
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, scores=Scores(scale), **features)
        decoder = replace(
            decoder,
            embedding_scale=f.number("embedding_multiplier", 1.0),
            residual=f.number("residual_multiplier", 1.0),
            logits=Logits(scale=1 / f.number("logits_scaling", 1.0)),
        )
        moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
        return Config(decoder, moe, f.count("intermediate_size"))


def _parse(f: Fields) -> Config:
    return Config.parse(f)


class Family(DecoderFamily):
    """What Granite's families share; one with shared experts has fields of its own."""

    name = "granitemoe"
    parse = staticmethod(_parse)
    router = "router.layer.weight"  # behind the block's prefix
    fused_names = ("input_linear.weight", "output_linear.weight")

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = self.parse(Fields(config))
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks = self._config, list[Block]()
        for i, block in enumerate(self._blocks()):
            # softmax over the chosen logits, as published, is the normalised choice of a softmax over all
            gate = block + self.router
            router = layers.softmax_router(gate, c.decoder.block_norm(i), c.moe.top_k, normalise=True)
            shared = self.shared(layers.weights, i)
            blocks.append(MoeBlock(i, router, experts, profiler, shared=shared, residual=c.decoder.residual))
        return Decoder(c.decoder, layers, blocks, experts, profiler, self.attention(layers))

    def attention(self, layers: Layers) -> list[Attention] | None:
        """What takes the place of attention in each layer; None: attention, as the config says."""
        return None

    def shared(self, weights: Weights, layer: int) -> Callable[[Hidden], Hidden] | None:
        """What a layer gives every token besides."""
        return None

    def _blocks(self) -> list[str]:
        return [f"model.layers.{i}.block_sparse_moe." for i in range(self.decoder.num_layers)]

    def block_shapes(self) -> Shapes:
        hidden = self.decoder.attention.hidden_size
        return {block + self.router: (self.moe.experts_of(i), hidden) for i, block in enumerate(self._blocks())}

    @cached_property
    def tensors(self) -> TensorPlan:
        experts = GatedExperts(self._blocks(), self._config.intermediate_size, None, self.fused_names)
        plan = self.gated_experts(experts)
        return replace(
            plan,
            renamed={
                r"\.experts\.gate_up_proj$": ".input_linear.weight",
                r"\.router\.weight$": ".router.layer.weight",
                r"\.experts\.down_proj$": ".output_linear.weight",
            },
        )
