"""Layers that choose among the states that blocks of layers have left, as they are (block_residual.py; Kimi K3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.models.layers.array_math import Array
from moeinf.models.layers.assemble import Connections, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Weights
from moeinf.models.layers.streams.block_residual import (
    BlockResidual,
    BlocksStem,
    OpeningResidual,
    RawStates,
    block_states_workspace,
)
from moeinf.models.layers.streams.hyper import StreamedAttention, streamed
from moeinf.types import Profiler, Workspace

_ATTENTION, _BLOCK, _OUTPUT = "self_attention_res", "mlp_res", "output_attn_res"


@dataclass(frozen=True, slots=True)
class ResidualConnections(Connections):
    """A query is the product of the weights of a norm with those of a projection to one number."""

    layers_of_block: int

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        hidden, layers = decoder.attention.hidden_size, range(decoder.num_layers)
        names = [decoder.module(i, name) for i in layers for name in (_ATTENTION, _BLOCK)] + [decoder.prefix + _OUTPUT]
        return {f"{n}_norm.weight": (hidden,) for n in names} | {f"{n}_proj.weight": (1, hidden) for n in names}

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        """What layers are given, beside what mixers take, and squares of states."""
        blocks, hidden = -(-decoder.num_layers // self.layers_of_block), decoder.attention.hidden_size
        states = block_states_workspace(hidden, blocks + 1, 1)
        found = mixers | states
        return replace(found, token=found.token + states.token)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, weights = spec.decoder, layers.weights
        states = RawStates[Array](weights.math, d.attention.norm_eps)
        attention, blocks = list[Attention](), list[Block]()
        made = spec.blocks.make(d, layers, experts, profiler)
        for i, (mixer, block) in enumerate(zip(spec.attention(layers), made, strict=True)):
            kind = BlockResidual if i % self.layers_of_block else OpeningResidual
            attention.append(StreamedAttention(kind(states, _query(weights, d.module(i, _ATTENTION))), mixer))
            blocks.append(streamed(BlockResidual(states, _query(weights, d.module(i, _BLOCK))), block))
        last = _query(weights, d.prefix + _OUTPUT)
        stem = BlocksStem(layers.embedding(d.embedding), weights.norm(None), (), states, last)
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)


def _query(weights: Weights, name: str) -> Array:
    """[1, hidden]."""
    return (weights.vector(f"{name}_norm.weight") * weights.vector(f"{name}_proj.weight").reshape(-1)).reshape(1, -1)
