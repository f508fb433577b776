"""Tables of n-grams: the last few tokens choose rows of a table, which lies on the disk (Qwen4ExpTextNGramEmbedding in
transformers).

Of tokens t_0, t_1, ... back to the last end of a text (behind which all count as such ends), the n-gram of each order n
up to `size` is the number

    x_n = t_0 m_0 xor t_1 m_1 xor ... xor t_(n-1) m_(n-1)        m odd, of a generator (splitmix64) seeded by the layer

and its rows in the tables of `heads` heads are x_n mod p, with a prime p for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Shapes
from moeinf.types import ByteArray, Float32Array, IntArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_SEEDS_APART = 10007
MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class NgramConfig:
    size: int  # tokens of the longest n-gram
    heads: int  # of each order
    embed_dim: int  # numbers that all heads of a token give together
    padded_to: int  # a table of all heads has a multiple of so many rows
    parts: int  # tensors that a table is cut into
    end_id: int  # of a text
    layers: tuple[int, ...]  # decoder layers that have a table
    primes: tuple[tuple[int, ...], ...]  # rows of each head's table, by layer
    multipliers: tuple[tuple[int, ...], ...]  # of the last tokens' ids, by layer
    picture_id: int = field(default=0, kw_only=True)  # which counts as the id of each of a picture's tokens

    @property
    def filler(self) -> int:
        """What counts as the tokens in front of an end."""
        return self.end_id

    @staticmethod
    def parse(f: Fields, hidden_size: int, vocab_size: int, num_layers: int) -> NgramConfig | None:
        """None where no layer has a table."""
        layers = sorted(f.layers("ple_layer_ids"))  # counted from 1
        if not layers:
            return None
        if layers[0] < 1 or layers[-1] > num_layers:
            raise CheckpointError(f"{f.where}: ple_layer_ids are {layers}; layers are counted from 1 to {num_layers}")
        ends = f.get("eos_token_id")
        end = Fields({"eos_token_id": ends[0] if isinstance(ends, list) and ends else ends}, f.where)
        size = f.count("ngram_size", 3, minimum=2, maximum=64)
        heads = f.count("heads_per_ngram", 8, maximum=1024)
        config = NgramConfig(
            size,
            heads,
            f.count("ple_embed_dim", hidden_size),
            f.count("make_ngram_vocab_size_divisible_by", 128),
            f.count("split_ngram_parts", 512, maximum=1 << 16),
            end.count("eos_token_id", minimum=0),
            tuple(layer - 1 for layer in layers),
            primes_of(
                f, "ngram_heads_vocab_sizes", "ngram_vocab_size_base", 20_000_000, len(layers), (size - 1) * heads
            ),
            _multipliers(f, len(layers), size, vocab_size),
        )
        if config.embed_dim % config.all_heads:
            raise CheckpointError(
                f"{f.where}: ple_embed_dim {config.embed_dim} is no multiple of {config.all_heads} heads "
                "(ngram_size, heads_per_ngram)"
            )
        return config

    def hashes(self, table: int) -> dict[str, tuple[int, ...]]:
        """What published code keeps beside a table, by its names."""
        primes = self.primes[table]
        starts = tuple(sum(primes[:i]) for i in range(len(primes)))
        return {
            "layer_multipliers": self.multipliers[table],
            "ngram_heads_vocab_sizes": primes,
            "ngram_heads_offsets": starts,
        }

    @property
    def all_heads(self) -> int:
        """Of all orders; orders begin with two tokens."""
        return (self.size - 1) * self.heads

    @property
    def row(self) -> int:
        """Numbers of a row of the tables."""
        return self.embed_dim // self.all_heads

    def part_rows(self, table: int) -> list[int]:
        """Rows of the tensors that a layer's table is cut into."""
        rows = -(-sum(self.primes[table]) // self.padded_to) * self.padded_to
        each = -(-rows // self.parts)
        return [min(each, rows - start) for start in range(0, rows, each)]

    def part_names(self, table: int, prefix: str) -> list[str]:
        return [f"{prefix}ngram_embedding.shard_{i}.weight" for i in range(len(self.part_rows(table)))]

    def shapes(self, table: int, prefix: str) -> Shapes:
        rows = self.part_rows(table)
        return {name: (count, self.row) for name, count in zip(self.part_names(table, prefix), rows, strict=True)}


class NgramTable:
    """The table of one layer, whose rows are looked up where they lie."""

    def __init__(self, config: NgramConfig, table: int, parts: Sequence[Callable[[IntArray], Float32Array]]) -> None:
        """table: the number of the layer among those with tables; parts: lookups of its tensors, in order."""
        self._config, self._parts = config, parts
        primes = np.array(config.primes[table], np.int64)
        self._primes = primes.reshape(config.size - 1, config.heads)
        self._offsets = (np.cumsum(primes) - primes).reshape(self._primes.shape)
        self._multipliers = np.array(config.multipliers[table], np.int64)
        self._part_rows = config.part_rows(table)[0]

    def rows_of(self, ids: IntArray) -> IntArray:
        """The numbers of rows of ids [tokens], behind the size - 1 tokens in front of them: [tokens, all_heads]."""
        c, before = self._config, self._config.size - 1
        tokens = len(ids) - before
        mixed, ended = ids[before:] * self._multipliers[0], np.zeros(tokens, np.bool_)
        found = np.empty((tokens, before, c.heads), np.int64)
        for back in range(1, c.size):
            earlier = ids[before - back : len(ids) - back]
            ended |= earlier == c.end_id
            mixed = mixed ^ np.where(ended, c.filler, earlier) * self._multipliers[back]
            found[:, back - 1] = mixed[:, None] % self._primes[back - 1] + self._offsets[back - 1]
        return found.reshape(tokens, c.all_heads)

    def __call__(self, ids: IntArray) -> Float32Array:
        """ids: as rows_of takes them -> [tokens, embed_dim]."""
        rows = self.rows_of(ids).reshape(-1)
        out = np.empty((len(rows), self._config.row), np.float32)
        part_of = rows // self._part_rows
        order = np.argsort(part_of, kind="stable")
        borders = np.flatnonzero(np.diff(part_of[order])) + 1
        for chosen in np.split(order, borders):
            part = int(part_of[chosen[0]])
            out[chosen] = self._parts[part](rows[chosen] - part * self._part_rows)
        return out.reshape(-1, self._config.embed_dim)


class LastTokens:
    """What the next tokens' n-grams begin with: moeinf.models.layers.kv_cache.WholeState, in host memory."""

    rewinds = False

    def __init__(self, config: NgramConfig) -> None:
        self._end = config.end_id
        self.ids: IntArray = np.full(config.size - 1, self._end, np.int64)
        self.num_bytes = self.ids.nbytes
        self._tried: IntArray | None = None  # the ids of a pass that is tried

    def add(self, ids: IntArray) -> None:
        """Called behind the pass, as what this holds is no work of a device."""
        if self._tried is None:
            self.ids = np.concatenate([self.ids, ids])[-len(self.ids) :]
        else:
            self._tried = ids

    def try_rows(self, rows: int) -> None:
        self._tried = self.ids[:0] if rows else None

    def commit(self, rows: int) -> None:
        if self._tried is not None:
            ids, self._tried = self._tried[:rows], None
            self.add(ids)

    def truncate(self, length: int) -> None:
        assert length == 0
        self.ids = np.full_like(self.ids, self._end)

    def save(self, into: ByteArray) -> None:
        into[:] = self.ids.view(np.uint8)

    def load(self, kept: ByteArray) -> None:
        self.ids = kept.copy().view(np.int64)


def primes_of(
    f: Fields, given_by: str, above: str, default: int, tables: int, heads: int
) -> tuple[tuple[int, ...], ...]:
    """Of each table and head, as the field given_by has them, else those above the number of the field `above`."""
    given = lists_of_numbers(f, given_by, tables, heads, MOST_ROWS)
    if given is not None:
        return given
    least = f.count(above, default, minimum=2)
    if least * heads * tables > MOST_ROWS:
        raise CheckpointError(f"{f.said(above)} {least} is beyond what moeinf takes")
    found = primes_from(least)
    return tuple(tuple(next(found) for _ in range(heads)) for _ in range(tables))


def _multipliers(f: Fields, tables: int, size: int, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    largest = ((1 << 63) - 1) // vocab_size  # whose products with an id stay whole numbers of 64 bits
    seed, half = f.count("seed", 1234, minimum=0), max(1, largest // 2)
    given = lists_of_numbers(f, "layer_multipliers", tables, size, largest)
    if given is not None:
        return given
    return tuple(
        tuple(2 * (_mixed(seed + _SEEDS_APART * table + _GAMMA * (i + 1)) % half) + 1 for i in range(size))
        for table in range(tables)
    )


def lists_of_numbers(
    f: Fields, name: str, tables: int, length: int, largest: int
) -> tuple[tuple[int, ...], ...] | None:
    """A list of numbers for each table, as GGUF files have them; None where config.json leaves them to follow."""
    value = f.get(name)
    if value is None:
        return None
    lists = value if isinstance(value, list) else []
    sound = len(lists) == tables and all(isinstance(each, list) and len(each) == length for each in lists)
    if not sound or not all(type(number) is int and 0 < number <= largest for each in lists for number in each):
        raise CheckpointError(
            f"{f.where}: {name} is {value!r:.100}; must be {tables} lists of {length} whole numbers from 1 to {largest}"
        )
    return tuple(tuple(each) for each in lists)


def _mixed(value: int) -> int:
    """splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def primes_from(least: int) -> Iterator[int]:
    number = max(least, 2)
    while True:
        if number == 2 or (number % 2 and all(number % d for d in range(3, isqrt(number) + 1, 2))):
            yield number
        number += 1
