"""Decoders in which some layers are recurrent, and the others have the common attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from moeinf.models.layers.attention_config import (
    AttentionConfig,
    AttentionSite,
    Shapes,
    attention_shapes,
    attention_workspace,
)
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.types import Workspace


@dataclass(frozen=True, slots=True)
class MixedLayers:
    decoder: DecoderConfig
    recurrent: frozenset[int]  # the numbers of these layers
    part: str  # what their tensors have in the place of self_attn in their names
    shapes_at: Callable[[str], Shapes]  # of one of them, by what the names begin with
    recurrent_workspace: Workspace
    state_bytes_each: int

    def attention(self, layers: Layers, make: Callable[[AttentionSite], Attention]) -> list[Attention]:
        """What mixes the tokens of each layer. make: a recurrent one."""
        d = self.decoder
        return [
            make(d.attention_site(i, self.part))
            if i in self.recurrent
            else layers.attention(d.attention_of(i), d.attention_site(i))
            for i in range(d.num_layers)
        ]

    def shapes(self) -> Shapes:
        found = Shapes()
        for i in range(self.decoder.num_layers):
            layer = f"{self.decoder.prefix}layers.{i}."
            found |= (
                self.shapes_at(f"{layer}{self.part}.")
                if i in self.recurrent
                else attention_shapes(self.decoder.attention_of(i), f"{layer}self_attn.")
            )
        return found

    @property
    def workspace(self) -> Workspace:
        return reduce(or_, map(attention_workspace, dict.fromkeys(self._attending)), self.recurrent_workspace)

    @property
    def cache_numbers(self) -> int:
        """How many numbers the cache keeps of one token."""
        return sum(2 * each.num_kv_heads * each.head_dim for each in self._attending)

    @property
    def _attending(self) -> list[AttentionConfig]:
        d = self.decoder
        return [d.attention_of(i) for i in range(d.num_layers) if i not in self.recurrent]

    @property
    def state_bytes(self) -> int:
        return len(self.recurrent) * self.state_bytes_each
