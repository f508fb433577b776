"""Tables of n-grams whose rows are brought into streams by how well they match these (DeepSeek-V4.1's Engram).

Tokens that are written alike but for case, accents and spaces count as one. Of the rows e that a token's n-grams choose
(ngrams.py) and streams x_s, with weights q_s and k_s that are learned,
    a_s = (q_s x_s / rms(x_s)) . (k_s (W e)_s / rms((W e)_s)) / sqrt(hidden)
    x_s <- x_s + sigmoid(sign(a_s) sqrt |a_s|) (W e)_value
Tokens of pictures keep their streams; to tokens behind them they are what lies in front of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import Cache, LayerState, Span
from moeinf.models.layers.latent.compressed import CompressedAttention
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.protocol import Attention, Experts, Layers, Positions, Weights
from moeinf.models.layers.streams.gated_residual import SLICE
from moeinf.models.layers.streams.lagged import LaggedConnections
from moeinf.models.layers.streams.mixed_decoder import Beside
from moeinf.models.layers.streams.mixed_residual import MixedStreams
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.ngrams import NgramConfig, lists_of_numbers, primes_of
from moeinf.models.layers.streams.picture_column import PictureColumn, PictureTokens
from moeinf.models.layers.streams.spread import Columns, NgramColumns, NoColumns
from moeinf.types import Float32Array, Profiler, TensorPlan, Workspace

TOKEN_MAP = "engram_token_map"  # a field that pull makes of the tokenizer: of each token, what counts as one with it
_LEAST = 1e-6  # of |a_s|
_SEEDS_APART = 10007
_NONE = -1  # what stands in front of a sequence, as no token's number


@dataclass(frozen=True)
class EngramConfig(NgramConfig):
    rows: tuple[int, ...]  # of each table
    pad_id: int  # the token that counts as those in front of a sequence
    kinds: int  # of tokens that are not written alike
    token_map: tuple[int, ...]  # the kind of each token; () where it is not known

    @property
    def filler(self) -> int:
        return self.token_map[self.pad_id]

    def part_rows(self, table: int) -> list[int]:
        return [self.rows[table]]

    def part_names(self, table: int, prefix: str) -> list[str]:
        return [f"{prefix}embed.weight"]

    @staticmethod
    def of(f: Fields, vocab_size: int, num_layers: int) -> EngramConfig | None:
        """None where no layer has a table."""
        layers = tuple(sorted(f.layers("engram_layer_ids")))
        if not layers:
            return None
        if layers[0] < 0 or layers[-1] >= num_layers:
            raise CheckpointError(f"{f.said('engram_layer_ids')} are {list(layers)}; there are {num_layers} layers")
        size = f.count("engram_max_ngram_size", 4, minimum=2, maximum=64)
        heads = f.count("engram_n_heads", 8, maximum=1024)
        kinds = f.count("engram_compressed_vocab_size")
        pads = [f.get(name) for name in ("engram_pad_token_id", "engram_pad_id")]
        pad = Fields({"engram_pad_token_id": next((each for each in pads if each is not None), 2)}, f.where)
        config = EngramConfig(
            size,
            heads,
            (size - 1) * heads * f.count("engram_head_dim", 256),
            1,
            1,
            _NONE,
            layers,
            primes_of(f, "engram_primes", "engram_vocab_size", 16_000_000, len(layers), (size - 1) * heads),
            _multipliers(f, layers, size, kinds),
            tuple(f.counts("engram_num_embeddings", len(layers))),
            pad.count("engram_pad_token_id", minimum=0, maximum=vocab_size - 1),
            kinds,
            _token_map(f, vocab_size, kinds),
        )
        for rows, primes in zip(config.rows, config.primes, strict=True):
            if rows < sum(primes):
                raise CheckpointError(
                    f"{f.said('engram_num_embeddings')} has {rows} rows of a table, and its heads choose among "
                    f"{sum(primes)} (engram_vocab_size)"
                )
        return config


def _multipliers(f: Fields, layers: Sequence[int], size: int, kinds: int) -> tuple[tuple[int, ...], ...]:
    largest = np.iinfo(np.int64).max // kinds  # whose products with a number stay whole numbers of 64 bits
    given = lists_of_numbers(f, "engram_multipliers", len(layers), size, int(largest))
    if given is not None:
        return given
    half = max(1, int(largest) // 2)
    drawn = (np.random.default_rng(_SEEDS_APART * layer).integers(0, half, size, np.int64) for layer in layers)
    return tuple(tuple(2 * int(number) + 1 for number in numbers) for numbers in drawn)


def _token_map(f: Fields, vocab_size: int, kinds: int) -> tuple[int, ...]:
    value = f.get(TOKEN_MAP)
    if value is None:
        return ()
    sound = isinstance(value, list) and len(value) <= vocab_size and all(type(kind) is int for kind in value)
    if not sound or not value or min(value) < 0 or max(value) != kinds - 1:
        raise CheckpointError(
            f"{f.said(TOKEN_MAP)} must be a number from 0 to {kinds - 1} for each token; {kinds} is "
            "engram_compressed_vocab_size: the tokenizer is not the one that the tables were made with"
        )
    return tuple(value) + (0,) * (vocab_size - len(value))  # the embedding may have rows that no token has


class EngramColumns(NgramColumns):
    """Rows of the tables, by the kinds of tokens."""

    def __init__(
        self,
        layers: Layers,
        config: EngramConfig,
        prefixes: Sequence[str],
        number: int,
        pictures: PictureTokens | None = None,
    ) -> None:
        if not config.token_map:
            raise CheckpointError(
                f"config.json has no {TOKEN_MAP}, which pull makes of the tokenizer; pull the model again"
            )
        super().__init__(layers, config, prefixes, number)
        self._kinds = np.array(config.token_map, np.int64)
        if pictures is not None:
            self._kinds[pictures.id] = _NONE

    def of(self, ids: Sequence[int], cache: Cache) -> Float32Array:
        return super().of(self._kinds[list(ids)].tolist(), cache)

    def seen(self, ids: Sequence[int], cache: Cache) -> None:
        super().seen(self._kinds[list(ids)].tolist(), cache)


class Engram:
    """In front of the attention of a layer."""

    def __init__(
        self,
        weights: Weights,
        streams: MixedStreams,
        config: EngramConfig,
        prefix: str,
        given: Given,
        table: int,
        *,
        pictures: bool,
    ) -> None:
        """given: shared with the stem; table: which of the rows. pictures: the last column tells their tokens."""
        self._streams, self._math, self._given, self._pictures = streams, weights.math, given, pictures
        self._columns = slice(table * config.embed_dim, (table + 1) * config.embed_dim)
        self._both = weights.linear(f"{prefix}wkv.weight")
        queries, keys = (weights.vector(f"{prefix}{name}_weight") for name in ("q", "k"))
        self._weight = (queries * keys).reshape(streams.count, streams.hidden_size)

    def add_to(self, x: Hidden) -> None:
        c, looked_up = self._streams, self._given.rows[0]
        for at in range(0, len(x), SLICE):
            part = x[at : at + SLICE]
            both = self._both(looked_up[at : at + SLICE, self._columns] * 1.0)
            keys = both[:, : c.width].reshape(len(part), c.count, c.hidden_size)
            streams = part.reshape(len(part), c.count, c.hidden_size)
            gates = self._gates(streams, keys)
            if self._pictures:
                gates = gates * (looked_up[at : at + SLICE, -1:] * -1.0 + 1.0)
            added = gates[:, :, None] * both[:, None, c.width :]
            part += added.reshape(len(part), c.width)

    def _gates(self, streams: Array, keys: Array) -> Array:
        """Both [tokens, streams, hidden] -> [tokens, streams]."""
        math, size = self._math, self._streams.hidden_size
        products = math.sum(streams * self._weight * keys, -1, False) * (self._scale(streams) * self._scale(keys))
        products = products * size**-0.5
        root = math.clip(abs(products), _LEAST, float("inf")) ** 0.5
        return math.sigmoid(math.where(-products > 0, -root, root))

    def _scale(self, x: Array) -> Array:
        """1 / rms of each stream."""
        mean = self._math.sum(x * x, -1, False) * (1 / self._streams.hidden_size)
        return (mean + self._streams.norm_eps) ** -0.5


class WithEngram:
    """moeinf.models.layers.protocol.Attention: a layer with a table in front of it."""

    def __init__(self, engram: Engram, layer: Attention) -> None:
        self._engram, self._layer = engram, layer

    def new_state(self, capacity: int) -> LayerState:
        return self._layer.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        self._engram.add_to(x)
        self._layer.add_rows(x, spans)


@dataclass(frozen=True, slots=True)
class EngramConnections(LaggedConnections):
    tables: EngramConfig | None
    pictures: PictureTokens | None = None  # of a model that sees

    @property
    def state_bytes(self) -> int:
        return 0 if self.tables is None else 8 * (self.tables.size - 1)

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        c, shapes = self.streams, LaggedConnections.shapes(self, decoder) | self._tables(decoder)
        for prefix in self._prefixes(decoder):
            assert self.tables is not None
            shapes[f"{prefix}wkv.weight"] = (c.width + c.hidden_size, self.tables.embed_dim)
            shapes |= {f"{prefix}{name}_weight": (c.count, c.hidden_size) for name in ("q", "k")}
        return shapes

    def _prefixes(self, decoder: DecoderConfig) -> list[str]:
        """Of the tensors of each table."""
        return [f"{decoder.layer(i)}engram." for i in (() if self.tables is None else self.tables.layers)]

    def _tables(self, decoder: DecoderConfig) -> Shapes:
        shapes = Shapes()
        for table, prefix in enumerate(self._prefixes(decoder)):
            assert self.tables is not None
            shapes |= self.tables.shapes(table, prefix)
        return shapes

    def with_tables(self, decoder: DecoderConfig, plan: TensorPlan) -> TensorPlan:
        tables = self._tables(decoder).keys()
        return replace(plan, matrices=plan.matrices | tables, lookups=plan.lookups | tables)

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        """Rows of a pass, looked up and where they are computed with; of a slice what is made of them."""
        found, width = LaggedConnections.workspace(self, decoder, mixers), 0
        if self.tables is not None:
            width, rows = self.tables.embed_dim, len(self.tables.layers) * self.tables.embed_dim
            found |= Workspace(token=3 * rows, parts=SLICE * (6 * self.streams.width + width), inputs=width)
        return found if self.pictures is None else replace(found, token=found.token + 3)  # of a column

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, attention = spec.decoder, spec.attention(layers)
        blocks, given, pictures = spec.blocks, Given(), self.pictures
        if pictures is not None:
            assert isinstance(blocks, Moe)
            blocks = replace(blocks, router=partial(pictures.router, given=given))
        made = blocks.make(d, layers, experts, profiler)
        compressed = (each for each in attention if isinstance(each, CompressedAttention))
        states = [each.new_entries for each in compressed if each.has_entries]
        number, prefixes = d.num_layers + len(states), self._prefixes(d)
        columns: Columns = NoColumns()
        if self.tables is not None:
            columns = EngramColumns(layers, self.tables, prefixes, number, pictures)
        if pictures is not None:
            columns = PictureColumn(columns, pictures.id)
        return self.mixed(d, layers, attention, made, experts, profiler, Beside(columns, given, states))

    def behind_tables(
        self, decoder: DecoderConfig, layers: Layers, attention: list[Attention], given: Given
    ) -> list[Attention]:
        for table, prefix in enumerate(self._prefixes(decoder)):
            assert self.tables is not None
            seen = self.pictures is not None
            engram = Engram(layers.weights, self.streams, self.tables, prefix, given, table, pictures=seen)
            i = self.tables.layers[table]
            attention[i] = WithEngram(engram, attention[i])
        return attention
