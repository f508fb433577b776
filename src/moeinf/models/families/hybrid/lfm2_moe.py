"""LFM2 MoE: short convolutions in most layers, attention in the others, DeepSeek's routing (Lfm2MoeForCausalLM)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.family import MixedDecoderFamily
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.attention_config import HeadNorms, Projections, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.deepseek_moe import BlockNames, DeepseekMoe, SigmoidRouter
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.recurrent.mixed import MixedLayers
from moeinf.models.layers.recurrent.short_conv import (
    ShortConv,
    ShortConvConfig,
    short_conv_shapes,
    short_conv_workspace,
)
from moeinf.types import Profiler, TensorPlan

_MATRICES = ("w1", "w3", "w2")  # gate, up and down
_NAMES = BlockNames("feed_forward.", bias="expert_bias", experts=_MATRICES, dense=_MATRICES)


class Router(SigmoidRouter):
    added = 1e-6


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: DeepseekMoe
    conv: ShortConvConfig
    conv_layers: frozenset[int]  # that have a convolution instead of attention

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("rms_norm_eps", f.get("norm_eps"), None)  # not what the published code reads
        f.only("attention_bias", False, None)
        eps = f.number("norm_eps", 1e-5, zero=True)
        tied = f.flag("tie_embedding", f.flag("tie_word_embeddings", True))  # the older name counts
        decoder = parse_decoder(
            f.with_values(tie_word_embeddings=tied),
            norm_eps=eps,
            theta=1e6,
            head_norms=HeadNorms(names=("q_layernorm", "k_layernorm")),
            projections=Projections(output="out_proj"),
        )
        decoder = decoder.named(
            norms=LayerNorms(attention="operator_norm", block="ffn_norm"), last_norm="embedding_norm"
        )
        kinds = f.kinds("layer_types", decoder.num_layers, "conv", "full_attention")
        if kinds is None:
            raise CheckpointError(f"{f.where}: layer_types is missing")
        conv = ShortConvConfig(
            decoder.attention.hidden_size, f.count("conv_L_cache", 3, minimum=2), eps, f.flag("conv_bias", False)
        )
        conv_layers = frozenset(i for i, kind in enumerate(kinds) if kind == "conv")
        return Config(decoder, _parse_blocks(f, decoder.num_layers), conv, conv_layers)


def _parse_blocks(f: Fields, num_layers: int) -> DeepseekMoe:
    dense = f.count("num_dense_layers", 2, minimum=0)
    moe_layers = tuple(range(dense, num_layers))
    if not moe_layers:
        raise CheckpointError(f"{f.where}: num_dense_layers is {dense}, which leaves no layer with experts")
    names = ("num_experts", "num_local_experts")
    return DeepseekMoe(
        routed_shape(f, names, f.count("num_experts_per_tok", 4), num_layers, moe_layers),
        moe_layers,
        f.count("intermediate_size", 7168),
        f.count("moe_intermediate_size", 1792),
        0,
        scaling=f.number("routed_scaling_factor", 1.0),
        normalise=f.flag("norm_topk_prob", True),
        corrected=f.flag("use_expert_bias", True),
        names=_NAMES,
    )


class Family(MixedDecoderFamily):
    name = "lfm2_moe"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(Fields(config))
        self.decoder, self.moe = c.decoder, c.blocks.moe
        self.mixed = MixedLayers(
            c.decoder,
            c.conv_layers,
            "conv",
            partial(short_conv_shapes, c.conv),
            short_conv_workspace(c.conv),
            c.conv.state_bytes,
        )

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        attention = self.mixed.attention(layers, partial(ShortConv, layers.weights, c.conv))
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, Router)
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.gated_experts(self._config.blocks.experts(self.decoder))
        mlps = (name for name in plan.dense if name.endswith(tuple(f".{each}.weight" for each in _MATRICES)))
        return replace(plan, matrices=plan.matrices.union(mlps))
