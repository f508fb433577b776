"""A recurrent layer in the place of attention, as a part of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moeinf.models.layers.attention_config import AttentionSite, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.types import Workspace


@dataclass(frozen=True, slots=True)
class Recurrent:
    """moeinf.models.layers.assemble.Mixer."""

    module: str  # what its tensors have in the place of self_attn in their names
    shapes_at: Callable[[str], Shapes]  # by what the names begin with
    memory: Workspace
    state_bytes: int
    of_site: Callable[[Layers, AttentionSite], Attention]
    row_numbers: int = 0
    token_bytes: int = 0

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        return self.shapes_at(decoder.attention_site(layer, self.module).prefix)

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return self.memory

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> Attention:
        return self.of_site(layers, decoder.attention_site(layer, self.module))
