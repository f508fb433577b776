"""The halves of a layer that families leave out whose layers are one half each: attention, or a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import Mixer
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.types import ByteArray, Workspace


class NoState:
    """Keeps nothing of a sequence."""

    rewinds = True
    planes = row_bytes = 0

    def truncate(self, length: int) -> None:
        pass

    def save_rows(self, start: int, into: ByteArray) -> None:
        pass

    def load_rows(self, start: int, rows: ByteArray) -> None:
        pass


class NoAttention:
    def new_state(self, capacity: int) -> NoState:
        return NoState()

    def add_rows(self, x: Hidden, spans: Sequence[Span[object]]) -> None:
        pass


class NoBlock:
    def add_to(self, x: Hidden) -> None:
        pass


@dataclass(frozen=True, slots=True)
class NoMixer(Mixer):
    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        return {}

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return Workspace()

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> Attention:
        return NoAttention()
