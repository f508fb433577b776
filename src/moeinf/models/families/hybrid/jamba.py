"""Jamba (arXiv 2403.19887): Mamba in most layers, attention without positions in the others, experts in every other
layer (JambaForCausalLM)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.family import MixedDecoderFamily
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.attention_config import MLP_NAMES, Shapes, mlp_shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.models.layers.recurrent.mamba1 import Mamba1, Mamba1Config, mamba1_shapes, mamba1_workspace
from moeinf.models.layers.recurrent.mixed import MixedLayers
from moeinf.types import MoeShape, Profiler, TensorPlan


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    moe_layers: tuple[int, ...]  # that have experts; the others a dense MLP of the same size
    intermediate_size: int
    mamba: Mamba1Config
    mamba_layers: frozenset[int]  # that have Mamba instead of attention

    @staticmethod
    def parse(f: Fields) -> Config:
        silu_alone(f)  # which Mamba has, too
        f.only("attention_bias", False, None)
        f.only("mamba_proj_bias", False, None)
        f.only("sliding_window", None)
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, rope=None)
        decoder = decoder.named(norms=LayerNorms(block="pre_ff_layernorm"), last_norm="final_layernorm")
        moe_layers = _every(f, "expert_layer", decoder.num_layers, 2, 1)
        if not moe_layers:
            raise CheckpointError(f"{f.where}: expert_layer_offset leaves no layer with experts")
        hidden = decoder.attention.hidden_size
        mamba = Mamba1Config(
            hidden,
            f.count("mamba_expand", 2) * hidden,
            f.count("mamba_d_state", 16),
            -(-hidden // 16) if f.get("mamba_dt_rank") in (None, "auto") else f.count("mamba_dt_rank"),
            f.count("mamba_d_conv", 4, minimum=2),
            decoder.attention.norm_eps,
            f.flag("mamba_conv_bias", True),
        )
        top_k = f.count("num_experts_per_tok", 2)
        return Config(
            decoder,
            routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers, moe_layers),
            moe_layers,
            f.count("intermediate_size"),
            mamba,
            frozenset(range(decoder.num_layers)) - {*_every(f, "attn_layer", decoder.num_layers, 8, 4)},
        )


def _every(f: Fields, what: str, num_layers: int, period: int, offset: int) -> tuple[int, ...]:
    """The layers that one field counts, from that of the other on."""
    period, offset = f.count(f"{what}_period", period), f.count(f"{what}_offset", offset, minimum=0)
    if offset >= period:
        raise CheckpointError(f"{f.where}: {what}_offset {offset} is not below {what}_period {period}")
    return tuple(i for i in range(num_layers) if i % period == offset)


class Family(MixedDecoderFamily):
    name = "jamba"

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(Fields(config))
        self.decoder, self.moe = c.decoder, c.moe
        self.mixed = MixedLayers(
            c.decoder,
            c.mamba_layers,
            "mamba",
            partial(mamba1_shapes, c.mamba),
            mamba1_workspace(c.mamba),
            c.mamba.state_bytes,
        )

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks = self._config, list[Block]()
        attention = self.mixed.attention(layers, partial(Mamba1, layers.weights, c.mamba))
        for i in range(c.decoder.num_layers):
            prefix, norm = self._block(i), c.decoder.block_norm(i)
            if i not in c.moe_layers:
                blocks.append(layers.gated_mlp(prefix, norm, activation=c.decoder.activation))
                continue
            router = layers.softmax_router(f"{prefix}router.weight", norm, c.moe.top_k, normalise=False)
            blocks.append(MoeBlock(c.moe_layers.index(i), router, experts, profiler))
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def _block(self, layer: int) -> str:
        return f"{self.decoder.prefix}layers.{layer}.feed_forward."

    def block_shapes(self) -> Shapes:
        c, shapes, hidden = self._config, Shapes(), self.decoder.attention.hidden_size
        for i in range(c.decoder.num_layers):
            if i in c.moe_layers:
                experts = c.moe.experts_of(c.moe_layers.index(i))
                shapes[f"{self._block(i)}router.weight"] = (experts, hidden)
            else:
                shapes |= mlp_shapes(hidden, c.intermediate_size, self._block(i))
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        c = self._config
        blocks = [self._block(i) for i in c.moe_layers]
        return self.gated_experts(GatedExperts(blocks, c.intermediate_size, MLP_NAMES))
