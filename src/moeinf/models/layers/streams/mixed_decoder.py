"""A decoder whose layers are all connected with several streams by few numbers of each token (mixed_residual.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import LayerState
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers
from moeinf.models.layers.streams.hyper import StreamedAttention, streamed
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


def mixed_decoder(
    d: DecoderConfig,
    c: MixedStreams,
    names: StreamNames,
    layers: Layers,
    attention: Sequence[Attention],
    blocks: Sequence[Block],
    experts: Experts,
    profiler: Profiler,
    beside: Beside | None = None,
) -> Decoder:
    """attention, blocks: whose outputs replace their inputs."""
    weights, beside = layers.weights, beside or Beside(NoColumns(), Given())
    connected, parts = list[Attention](), list[Block]()
    for i, (layer, block) in enumerate(zip(attention, blocks, strict=True)):
        in_front, behind = names.of_layer(d, i)
        connected.append(StreamedAttention(MixedResidual(weights, c, in_front), layer))
        parts.append(streamed(MixedResidual(weights, c, behind), block))
    last = None if names.head is None else MixedResidual(weights, c, d.prefix + names.head, writes=False)

    def mixed(x: Hidden) -> Hidden:
        return stem.mean(x) if last is None else last.read(x)[0]

    stem = StreamsStem(layers, d, c.count, mixed, beside.columns, beside.given, beside.states)
    return Decoder(d, layers, parts, experts, profiler, connected, stem)


def mixed_decoder_shapes(d: DecoderConfig, c: MixedStreams, names: StreamNames) -> Shapes:
    shapes = Shapes() if names.head is None else mixed_residual_shapes(c, d.prefix + names.head, writes=False)
    for i in range(d.num_layers):
        for name in names.of_layer(d, i):
            shapes |= mixed_residual_shapes(c, name)
    return shapes


def with_streams(workspace: Workspace, c: MixedStreams) -> Workspace:
    """What layers take, and the streams that are there meanwhile."""
    found = workspace | mixed_streams_workspace(c)
    return replace(found, token=found.token + c.width + 2 * c.hidden_size)
