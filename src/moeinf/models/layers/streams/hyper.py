"""Hyper-connections (arXiv 2409.19606): hidden states of several streams instead of one residual.

A layer is given a mixture of the streams, and what it computes of that is written to all of them. In memory the streams
of a token lie side by side, [tokens, count * hidden].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.protocol import Attention, Block, Positions, RoutedBlock


class Connection(Protocol):
    """How one layer is connected with the streams."""

    def read(self, streams: Hidden) -> tuple[Hidden, object]:
        """What the layer is given, [tokens, hidden], in memory of its own; and what `write` is to know."""
        ...

    def look(self, streams: Hidden) -> Hidden:
        """What the layer would be given, where the streams were these; nothing is kept of it."""
        ...

    def write(self, streams: Hidden, added: Hidden, known: object) -> None:
        """Brings what the layer gives, [tokens, hidden], into the streams."""
        ...


class StreamedAttention:
    """moeinf.models.layers.protocol.Attention, of a layer whose output replaces its input."""

    def __init__(self, connection: Connection, layer: Attention) -> None:
        self._connection, self._layer = connection, layer

    def new_state(self, capacity: int) -> LayerState:
        return self._layer.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        given, known = self._connection.read(x)
        self._layer.add_rows(given, spans)
        self._connection.write(x, given, known)


class StreamedBlock:
    """moeinf.models.layers.protocol.Block, of one whose output replaces its input."""

    def __init__(self, connection: Connection, block: Block) -> None:
        self._connection, self._block = connection, block

    def add_to(self, x: Hidden) -> None:
        given, known = self._connection.read(x)
        self._block.add_to(given)
        self._connection.write(x, given, known)


class StreamedMoeBlock(StreamedBlock):
    """moeinf.models.layers.protocol.RoutedBlock."""

    def __init__(self, connection: Connection, block: RoutedBlock) -> None:
        super().__init__(connection, block)
        self.moe_layer, self._router = block.moe_layer, block.router

    def router(self, x: Hidden) -> tuple[Hidden, object]:
        """Of the streams, as a guess at a later layer's routing has them."""
        return self._router(self._connection.look(x))


def streamed(connection: Connection, block: Block) -> Block:
    return StreamedMoeBlock(connection, block) if isinstance(block, RoutedBlock) else StreamedBlock(connection, block)
