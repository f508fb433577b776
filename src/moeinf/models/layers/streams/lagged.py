"""Hyper-connections whose mixture is one behind (DeepSeek-V4.1).

As in mixed_residual.py, but what a layer is given is mixed by what the connection in front of it has made of the
streams: attention's input by the block of the layer before, the block's by attention, and what leaves the streams by
the last block. The first of all is given the first stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Weights
from moeinf.models.layers.streams.gated_residual import SLICE
from moeinf.models.layers.streams.mixed_decoder import Beside, MixedConnections
from moeinf.models.layers.streams.mixed_residual import MixedResidual, MixedStreams
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.spread import StreamsStem
from moeinf.types import Profiler


@dataclass(slots=True)
class HandedOn:
    """The shares of the streams in the next mixture, as the last connection has made them in this pass."""

    shares: list[Array] = field(default_factory=list)  # one [tokens, count]


class LaggedResidual(MixedResidual[Array]):
    """moeinf.models.layers.streams.hyper.Connection."""

    def __init__(
        self, weights: Weights, config: MixedStreams, prefix: str, handed_on: HandedOn, before: LaggedResidual | None
    ) -> None:
        """before: the connection in front."""
        super().__init__(weights, config, prefix)
        self._handed_on, self._before = handed_on, before

    def read(self, streams: Hidden) -> tuple[Hidden, tuple[Hidden, Hidden | None] | None]:
        parts = [streams[at : at + SLICE] for at in range(0, len(streams), SLICE)]
        numbers = self._math.concatenate([self._numbers_of(part) for part in parts], 0)
        first = streams[:, : self._config.hidden_size] * 1.0
        given = first if self._before is None else self.leaving(streams)
        self._handed_on.shares[:] = [self._shares(numbers)]
        return given, (self._after(numbers), self._mixing(numbers))

    def leaving(self, streams: Hidden) -> Hidden:
        """The mixture by what was handed on."""
        shares = self._handed_on.shares[0]
        slices = [slice(at, at + SLICE) for at in range(0, len(streams), SLICE)]
        return self._math.concatenate([self._fused.weighed(streams[each], shares[each]) for each in slices], 0)

    def look(self, streams: Hidden) -> Hidden:
        """By what the connection in front would make of these streams."""
        assert self._before is not None, "only in front of blocks does anybody look ahead"
        return MixedResidual.read(self._before, streams)[0]


class LaggedStem(StreamsStem):
    """The same, where the mixture that leaves the streams is made of all tokens, as what was handed on is."""

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return pick(self._mixed(x))


@dataclass(frozen=True, slots=True)
class LaggedConnections(MixedConnections):
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
        handed_on, made = HandedOn(), list[LaggedResidual]()
        for name in self.of_all_layers(d):
            before = made[-1] if made else None
            made.append(LaggedResidual(layers.weights, self.streams, name, handed_on, before))
        connected, parts = self.connected(made, attention, blocks)
        connected = self.behind_tables(d, layers, connected, beside.given)
        leaving, columns = made[-1].leaving, beside.columns
        stem = LaggedStem(layers, d, self.streams.count, leaving, columns, beside.given, beside.states)
        return Decoder(d, layers, parts, experts, profiler, connected, stem)

    def behind_tables(
        self, decoder: DecoderConfig, layers: Layers, attention: list[Attention], given: Given
    ) -> list[Attention]:
        """The layers of attention, some of them behind what rows of tables bring into the streams."""
        return attention
