"""Tables of n-grams whose rows are added to the embedding of the token that they end (LongCat-Flash-Lite's).

Of tokens t_0, t_1, ... back to the last end of a text (behind which all count as 0) and V ids, the n-gram of order n is
t_0 + t_1 V + ... + t_(n-1) V^(n-1). Each order has several tables, of which each has a size P of its own; the n-gram
mod P is its row. What layers are given is the mean of the token's embedding and of the rows, each through a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import Connections, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.streams.ngrams import NgramConfig
from moeinf.models.layers.streams.spread import NgramColumns
from moeinf.types import Float32Array, Profiler, TensorPlan, Workspace


@dataclass(frozen=True, slots=True)
class NgramEmbedding(Connections):
    ngrams: NgramConfig  # primes: the sizes of the tables, one order behind the other

    @property
    def state_bytes(self) -> int:
        return 8 * (self.ngrams.size - 1)

    def names(self, decoder: DecoderConfig, module: str) -> list[str]:
        return [f"{decoder.prefix}ngram_embeddings.{module}.{i}.weight" for i in range(self.ngrams.all_heads)]

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        c, hidden = self.ngrams, decoder.attention.hidden_size
        tables = zip(self.names(decoder, "embedders"), c.primes[0], strict=True)
        shapes: Shapes = {name: (rows, c.row) for name, rows in tables}
        return shapes | {name: (hidden, c.row) for name in self.names(decoder, "post_projs")}

    def amended(self, decoder: DecoderConfig, plan: TensorPlan) -> TensorPlan:
        tables = frozenset(self.names(decoder, "embedders"))
        words = f"{decoder.prefix}ngram_embeddings.word_embeddings.weight"
        return replace(
            plan,
            matrices=plan.matrices | tables | set(self.names(decoder, "post_projs")),
            lookups=plan.lookups | tables,
            copies={**plan.copies, words: decoder.embedding},
        )

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        return replace(mixers, token=mixers.token + 3 * decoder.attention.hidden_size)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d = spec.decoder
        blocks = spec.blocks.make(d, layers, experts, profiler)
        stem = NgramStem(layers, d, self)
        return Decoder(d, layers, blocks, experts, profiler, spec.attention(layers), stem)


class TablesOfOrders(NgramColumns):
    def __init__(self, layers: Layers, config: NgramConfig, names: Sequence[str], number: int) -> None:
        super().__init__(layers, config, (), number)
        self._lookups = [layers.lookup(name) for name in names]

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array:
        c, before = self._config, self._config.size - 1
        behind = np.concatenate([cache.states[self._number].ids, np.asarray(ids, np.int64)])
        ended, earlier, rows = np.zeros(len(ids), np.bool_), [behind[before:]], list[Float32Array]()
        for back in range(1, c.size):
            there = behind[before - back : len(behind) - back]
            ended |= there == c.end_id
            earlier.append(np.where(ended, 0, there))
            for table in range((back - 1) * c.heads, back * c.heads):
                size = c.primes[0][table]
                powers = [pow(c.multipliers[0][0], i, size) for i in range(back + 1)]
                ngrams = np.array(powers, np.int64) @ np.array(earlier, np.int64)
                rows.append(self._lookups[table](ngrams % size))
        return np.concatenate(rows, 1)


class NgramStem:
    """moeinf.models.layers.streams.stem.Stem."""

    picture_id = 0

    def __init__(self, layers: Layers, decoder: DecoderConfig, made_of: NgramEmbedding) -> None:
        self._layers, self._rows, self._hidden = layers, layers.lookup(decoder.embedding), decoder.attention.hidden_size
        self._config, tables = made_of.ngrams, made_of.names(decoder, "embedders")
        self._columns = TablesOfOrders(layers, self._config, tables, decoder.num_layers)
        self._projections = [layers.weights.linear(name) for name in made_of.names(decoder, "post_projs")]

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return self._columns.new_states(capacity)

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        return self._layers.upload(np.concatenate([self._rows(ids), self._columns.of(ids, cache)], 1))

    def begin(self, x: Array) -> Hidden:
        found = x[:, : self._hidden] * 1.0
        for i, linear in enumerate(self._projections):
            at = self._hidden + i * self._config.row
            found = found + linear(x[:, at : at + self._config.row] * 1.0)
        return found * (1 / (1 + len(self._projections)))

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return pick(x)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        self._columns.seen(ids, cache)
