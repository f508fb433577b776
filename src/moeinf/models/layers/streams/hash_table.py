"""Experts that are looked up by the number of a token, for whose layers no router chooses (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.protocol import Layers
from moeinf.types import Float32Array


class HashColumns:
    """moeinf.models.layers.streams.spread.Columns: the experts of each layer with a table, one table behind another."""

    picture_id = 0

    def __init__(self, layers: Layers, tables: Sequence[str]) -> None:
        """tables: names of tensors [vocabulary, top_k]."""
        self._tables = [layers.lookup(name) for name in tables]

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return ()

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array:
        return np.concatenate([table(ids) for table in self._tables], 1)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        pass
