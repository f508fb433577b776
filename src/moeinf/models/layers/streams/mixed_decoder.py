"""A decoder whose layers are all connected with several streams by few numbers of each token (mixed_residual.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import Connections, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import LayerState
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers
from moeinf.models.layers.streams.hyper import Connection, StreamedAttention, streamed
from moeinf.models.layers.streams.mixed_residual import (
    MixedResidual,
    MixedStreams,
    mixed_residual_shapes,
    mixed_streams_workspace,
)
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.spread import Columns, NoColumns, StreamsStem
from moeinf.types import Profiler, Workspace


@dataclass(frozen=True, slots=True)
class StreamNames:
    """What the names of connections begin with."""

    attention: str  # behind the prefix of a layer
    block: str
    head: str | None  # behind that of the decoder; None: the mean of the streams leaves them

    def of_layer(self, decoder: DecoderConfig, layer: int) -> tuple[str, str]:
        prefix = f"{decoder.prefix}layers.{layer}."
        return prefix + self.attention, prefix + self.block


@dataclass(slots=True)
class Beside:
    """What the host looks up of tokens beside the embedding, who is given it, and what makes further states."""

    columns: Columns
    given: Given
    states: Sequence[Callable[[int], LayerState]] = ()


@dataclass(frozen=True, slots=True)
class MixedConnections(Connections):
    """Layers whose outputs replace their inputs, between streams."""

    streams: MixedStreams
    names: StreamNames

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        c, head = self.streams, self.names.head
        shapes = Shapes() if head is None else mixed_residual_shapes(c, decoder.prefix + head, writes=False)
        for i in range(decoder.num_layers):
            for name in self.names.of_layer(decoder, i):
                shapes |= mixed_residual_shapes(c, name)
        return shapes

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        """What layers take, and the streams that are there meanwhile."""
        c = self.streams
        found = mixers | mixed_streams_workspace(c)
        return replace(found, token=found.token + c.width + 2 * c.hidden_size)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        attention, blocks = spec.attention(layers), spec.blocks.make(spec.decoder, layers, experts, profiler)
        return self.mixed(spec.decoder, layers, attention, blocks, experts, profiler, Beside(NoColumns(), Given()))

    def mixed(
        self,
        d: DecoderConfig,
        layers: Layers,
        attention: Sequence[Attention],
        blocks: Sequence[Block],
        experts: Experts,
        profiler: Profiler,
        beside: Beside,
    ) -> Decoder:
        weights = layers.weights
        connected, parts = self.connected(
            [MixedResidual(weights, self.streams, name) for name in self.of_all_layers(d)], attention, blocks
        )
        head = self.names.head
        last = None if head is None else MixedResidual(weights, self.streams, d.prefix + head, writes=False)

        def mixed(x: Hidden) -> Hidden:
            return stem.mean(x) if last is None else last.read(x)[0]

        stem = StreamsStem(layers, d, self.streams.count, mixed, beside.columns, beside.given, beside.states)
        return Decoder(d, layers, parts, experts, profiler, connected, stem)

    def of_all_layers(self, decoder: DecoderConfig) -> list[str]:
        """What the names of connections begin with, in the order in which they come."""
        return [name for i in range(decoder.num_layers) for name in self.names.of_layer(decoder, i)]

    def connected(
        self, connections: Sequence[Connection], attention: Sequence[Attention], blocks: Sequence[Block]
    ) -> tuple[list[Attention], list[Block]]:
        """connections: of the attention and the block of each layer in turn."""
        in_front, behind = connections[::2], connections[1::2]
        streamed_attention = [StreamedAttention(*each) for each in zip(in_front, attention, strict=True)]
        return list(streamed_attention), [streamed(*each) for each in zip(behind, blocks, strict=True)]
