"""A column beside what the host looks up of tokens, which tells the layers those of pictures (DeepSeek-V4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.protocol import Layers, Router
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.spread import Columns
from moeinf.types import Float32Array


class MakeColumnRouter(Protocol):
    def __call__(self, layers: Layers, moe: Moe, site: BlockSite, given: Given) -> Router:
        """given: the columns, of which the last one tells the tokens of pictures."""
        ...


@dataclass(frozen=True, slots=True)
class PictureTokens:
    id: int  # which each of a picture's tokens has, and no other
    router: MakeColumnRouter


class PictureColumn:
    """moeinf.models.layers.streams.spread.Columns: behind those of another, 1 for a token of a picture, else 0."""

    def __init__(self, others: Columns, picture_id: int) -> None:
        self._others, self.picture_id = others, picture_id

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return self._others.new_states(capacity)

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array:
        told = np.array(ids, np.int64)[:, None] == self.picture_id
        return np.concatenate([self._others.of(ids, cache), told.astype(np.float32)], 1)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        self._others.seen(ids, cache)
