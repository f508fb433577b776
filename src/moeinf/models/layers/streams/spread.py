"""The stem of a model with hyper-connections: every stream begins as the embedding, and one mixture leaves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.ngrams import LastTokens, NgramConfig, NgramTable
from moeinf.types import Float32Array


class Columns(Protocol):
    """What the host looks up of tokens beside the embedding."""

    @property
    def picture_id(self) -> int:
        """As of a Stem."""
        ...

    def new_states(self, capacity: int) -> Sequence[LayerState]: ...

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array: ...

    def seen(self, ids: Sequence[int], cache: Cache) -> None: ...


class NoColumns:
    picture_id = 0

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return ()

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array:
        return np.empty((len(ids), 0), np.float32)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        pass


class NgramColumns:
    """Rows of the tables of n-grams."""

    def __init__(self, layers: Layers, config: NgramConfig, prefixes: Sequence[str], number: int) -> None:
        """prefixes: of the tensors of each table; number: of the state in the cache that keeps the last tokens."""
        self._config, self._number, self.picture_id = config, number, config.picture_id
        self._tables = [
            NgramTable(config, i, [layers.lookup(name) for name in config.part_names(i, prefix)])
            for i, prefix in enumerate(prefixes)
        ]

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return (LastTokens(self._config),)

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array:
        last: LastTokens = cache.states[self._number]
        behind = np.concatenate([last.ids, np.asarray(ids, np.int64)])
        return np.concatenate([table(behind) for table in self._tables], 1)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        last: LastTokens = cache.states[self._number]
        last.add(np.asarray(ids, np.int64))


class StreamsStem:
    """moeinf.models.layers.streams.stem.Stem."""

    def __init__(
        self,
        layers: Layers,
        decoder: DecoderConfig,
        count: int,
        mixed: Callable[[Hidden], Hidden],
        columns: Columns,
        given: Given,
        more: Sequence[Callable[[int], LayerState]] = (),
    ) -> None:
        """count: of the streams; mixed: what leaves them. given: takes the columns of a pass. more: what makes further
        states, which come before those of the columns."""
        self._layers, self._count, self._mixed, self._columns, self._given = layers, count, mixed, columns, given
        self._rows, self._hidden, self._more = layers.lookup(decoder.embedding), decoder.attention.hidden_size, more
        self.picture_id = columns.picture_id

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return [*(make(capacity) for make in self._more), *self._columns.new_states(capacity)]

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        return self._layers.upload(np.concatenate([self._rows(ids), self._columns.of(ids, cache)], 1))

    def begin(self, x: Array) -> Hidden:
        self._given.rows[:] = [x[:, self._hidden :]]
        return self._layers.weights.math.concatenate([x[:, : self._hidden]] * self._count, 1)

    def mean(self, x: Hidden) -> Hidden:
        math = self._layers.weights.math
        return math.sum(x.reshape(len(x), self._count, self._hidden), 1, False) * (1 / self._count)

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return self._mixed(pick(x))

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        self._columns.seen(ids, cache)
