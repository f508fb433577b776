"""The decoder that MoE families share: embedding, layers of attention and block, norm, head."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array, Hidden, joined
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Projections, Shapes
from moeinf.models.layers.kv_cache import Cache, NewTokens, Span, begin_pass
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Positions, RoutedBlock, Weights
from moeinf.models.layers.rope import Rope, partial_rotary, reach, rope_of, whole_heads
from moeinf.models.layers.soft_tokens import add_rows, of_vocabulary, put_rows
from moeinf.models.layers.streams.stem import PlainStem, Stem
from moeinf.types import Activation, Expected, Float32Array, Profiler

HEAD = "lm_head.weight"
FEW_ROWS: Final = 8  # of one sequence, which the kernels attend with as with one token
MOST_ROWS: Final = 64  # that they multiply as they multiply one

QUANT_METHODS = ("fp8", "mxfp8", "compressed-tensors", "modelopt", "gptq", "awq", "bitsandbytes")


def rounded_alike(one: int, other: int) -> bool:
    """Whether passes of so many tokens round alike (docs/contributing/numerics.md)."""
    return all((one <= limit) == (other <= limit) for limit in (FEW_ROWS, MOST_ROWS))


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """What a family calls the norms of a layer; None for one that it has not."""

    attention: str | None = "input_layernorm"  # of what attention is given
    behind_attention: str | None = None  # of what attention adds
    block: str | None = "post_attention_layernorm"  # of what the block is given


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """What a family calls its modules."""

    prefix: str = "model."  # of every tensor name but the head's
    layers: str = "layers"
    attention: str = "self_attn"
    embedding: str = "embed_tokens"
    last_norm: str | None = "norm"
    head_prefix: str = ""
    head: str = HEAD
    norms: LayerNorms = LayerNorms()

    def module(self, layer: int, name: str) -> str:
        """What the tensors of a module of a layer begin with, but for the dot."""
        return f"{self.prefix}{self.layers}.{layer}.{name}"


@dataclass(frozen=True, slots=True)
class Logits:
    """What is made of the products with the head."""

    scale: float = 1.0
    cap: float | None = None  # they become cap * tanh(logits / cap)
    bias: bool = False
    count: int | None = None  # where the head has further rows, which mean nothing


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    attention: AttentionConfig  # of most layers
    num_layers: int
    vocab_size: int
    context_length: int
    tied_embeddings: bool
    activation: Activation = "silu"  # of experts, shared ones and dense MLPs
    special: Mapping[int, AttentionConfig] = field(default_factory=dict)  # of layers whose attention is another
    names: ModuleNames = ModuleNames()
    embedding_scale: float = 1.0
    residual: float = 1.0  # multiplies what attention and blocks add
    replaces: bool = False  # what layers would add takes the place of their input, as hyper-connections want it
    logits: Logits = Logits()

    @property
    def prefix(self) -> str:
        return self.names.prefix

    @property
    def head(self) -> str:
        """The matrix that makes logits, where it is not the embedding."""
        return self.names.head_prefix + self.names.head

    @property
    def embedding(self) -> str:
        return f"{self.prefix}{self.names.embedding}.weight"

    def named(self, **names: Any) -> DecoderConfig:
        """The same with changed fields of ModuleNames."""
        return replace(self, names=replace(self.names, **names))

    def with_attention(self, of_layer: Callable[[int, AttentionConfig], AttentionConfig]) -> DecoderConfig:
        """The same with another attention in each layer, which is made of its number and of what it has."""
        made = ((i, of_layer(i, self.attention_of(i))) for i in range(self.num_layers))
        return replace(self, special={i: each for i, each in made if each != self.attention})

    def with_windows(self, slides: Sequence[bool], window: int | None) -> DecoderConfig:
        """slides: of each layer, whether it has the window; without it a layer sees all tokens."""
        return self.with_attention(lambda i, attention: attention.seeing(window if slides[i] else None))

    def without_positions(self, layers: Container[int]) -> DecoderConfig:
        """layers: whose queries and keys are not rotated."""
        return self.with_attention(lambda i, attention: replace(attention, rope=None) if i in layers else attention)

    def attention_of(self, layer: int) -> AttentionConfig:
        return self.special.get(layer, self.attention)

    @property
    def ropes(self) -> list[Rope]:
        """Every kind of positions that layers have, the common one first."""
        found = [self.attention.rope, *(each.rope for each in self.special.values())]
        return list(dict.fromkeys(rope for rope in found if rope is not None))

    def module(self, layer: int, name: str) -> str:
        """As ModuleNames.module."""
        return self.names.module(layer, name)

    def layer(self, layer: int) -> str:
        """What the tensors of a layer begin with."""
        return f"{self.prefix}{self.names.layers}.{layer}."

    def attention_site(self, layer: int, module: str | None = None) -> AttentionSite:
        """module: where it is not that of attention."""
        front, behind = (
            None if name is None else f"{self.module(layer, name)}.weight"
            for name in (self.names.norms.attention, self.names.norms.behind_attention)
        )
        prefix, eps = f"{self.module(layer, module or self.names.attention)}.", self.norm_eps(2 * layer + 1)
        return AttentionSite(layer, prefix, front, self.residual, behind, self.replaces, eps)

    def block_norm(self, layer: int) -> NormConfig:
        """The norm in front of a layer's block."""
        assert self.names.norms.block is not None, "this layer takes what a norm gives"
        name = self.module(layer, self.names.norms.block)
        return NormConfig(f"{name}.weight", self.norm_eps(2 * layer + 2), self.attention.norm)

    @property
    def last_norm(self) -> NormConfig | None:
        """The norm behind the last layer."""
        name, eps = self.names.last_norm, self.norm_eps(2 * self.num_layers + 1)
        return None if name is None else NormConfig(f"{self.prefix}{name}.weight", eps, self.attention.norm)

    def norm_eps(self, summed: int) -> float:
        """Of a norm of what the embedding, attention and blocks have given so far, `summed` terms."""
        return self.attention.norm_eps


def parse_decoder(
    f: Fields,
    *,
    norm_eps: float,
    theta: float,
    partial: float | None = None,
    quant_methods: Sequence[str] = QUANT_METHODS,
    **features: Any,
) -> DecoderConfig:
    """The fields that decoder families share, under the names they share; `features` are AttentionConfig's own,
    and `bias` and `output_bias` of its projections, where the config does not say them.

    norm_eps, theta, partial (of a head, that is rotated; None: it is all of it): the family's defaults. quant_methods:
    those of which `pull` reads its checkpoints. Refuses what the shared code does not compute.
    """
    f.only("per_layer_config", {}, None)
    if f.get("quantization_config") is not None:  # `pull` reads and undoes it
        f.within("quantization_config").only("quant_method", *quant_methods)
    heads, hidden = f.count("num_attention_heads"), f.count("hidden_size")
    head_dim = features.pop("head_dim", None) or f.count("head_dim", hidden // heads, minimum=2)
    context_length, biased = f.count("max_position_embeddings"), f.flag("attention_bias", False)
    out_biased = f.flag("attention_out_bias", biased)  # which a GGUF file may have without the others, and the reverse
    projections = replace(
        features.pop("projections", Projections()),
        bias=features.pop("bias", biased),
        output_bias=features.pop("output_bias", out_biased),
    )
    if "num_kv_heads" not in features:
        f.present("num_key_value_heads")
        features["num_kv_heads"] = f.count("num_key_value_heads", heads)
    if heads % features["num_kv_heads"]:
        shared = f"{f.name_of('num_key_value_heads')}, {features['num_kv_heads']}"
        raise CheckpointError(f"{f.said('num_attention_heads')} is {heads}, no multiple of {shared}")
    if "rope" not in features:
        if partial is None:
            whole_heads(f)
        rotary_dim = head_dim if partial is None else partial_rotary(f, head_dim, partial)
        features["rope"] = rope_of(f, rotary_dim, theta, context_length)
    attention = AttentionConfig(
        hidden_size=hidden,
        num_heads=heads,
        head_dim=head_dim,
        norm_eps=f.number("rms_norm_eps", norm_eps, zero=True),
        projections=projections,
        **features,
    )
    return DecoderConfig(
        attention,
        f.count("num_hidden_layers", maximum=MOST_LAYERS),
        f.count("vocab_size"),
        reach(f, context_length),
        f.flag("tie_word_embeddings", False),
        activation=activation_of(f),
    )


def sliding_layers(f: Fields, num_layers: int, otherwise: Callable[[int], bool]) -> list[bool]:
    """Of each layer, whether it has a window: by layer_types, or where that is missing by the layer's number."""
    kinds = f.kinds("layer_types", num_layers, "sliding_attention", "full_attention")
    return [otherwise(i) if kinds is None else kinds[i] == "sliding_attention" for i in range(num_layers)]


class Ends(NamedTuple):
    """What is in front of a model's layers, and behind the norm of the last one."""

    embedding: Callable[[Sequence[int]], Array]  # token ids to hidden states
    head: Callable[[Hidden], Array]  # from what the last norm gives to logits


class Decoder:
    """A whole model, of one sequence or of several at a time."""

    def __init__(
        self,
        config: DecoderConfig,
        layers: Layers,
        blocks: Sequence[Block],
        experts: Experts,
        profiler: Profiler,
        attention: Sequence[Attention] | None = None,
        stem: Stem | None = None,
    ) -> None:
        """attention: of a family that has its own; else what config says, under the common names. stem: of a family
        in which more than an embedding is between tokens and layers."""
        self.config = config
        self._layers = layers
        self._last_norm = layers.weights.norm(config.last_norm)
        self.ends = self._ends()
        kinds: list[Rope | None] = [*config.ropes] or [None]
        self._rotaries = [layers.rotary(rope, config.context_length) for rope in kinds]
        self._rotary_of = [  # layers without positions take whichever
            kinds.index(rope) if (rope := config.attention_of(i).rope) in kinds else 0 for i in range(config.num_layers)
        ]
        self._attention = attention or [
            layers.make(AttentionPart(config.attention_of(i), config.attention_site(i)))
            for i in range(config.num_layers)
        ]
        self._blocks = blocks
        # Asked once: to look for a protocol's methods takes microseconds.
        self._routed = [block if isinstance(block, RoutedBlock) else None for block in blocks]
        self._experts = experts
        self._profiler = profiler
        self._stem = stem or PlainStem(self.ends.embedding)
        self._own, self._others = range(len(blocks)), list[tuple[Decoder, range]]()

    def _ends(self) -> Ends:
        config, weights = self.config, self._layers.weights
        matrix = next((name for name in (HEAD, config.head) if name in weights), config.embedding)
        bias = "lm_head.bias" if config.logits.bias else None
        product, cap = head_of(weights, matrix, config.logits.scale, bias), config.logits.cap

        def head(normed: Hidden) -> Array:
            logits = product(normed)[:, : config.logits.count]
            return logits if cap is None else weights.math.tanh(logits / cap) * cap

        return Ends(self._layers.embedding(config.embedding), head)

    def divide(self, others: Sequence[tuple[Decoder, range]]) -> None:
        """Leaves layers to decoders of the same model, each on a device of its own: the last ones, a range each.

        What is in front of the layers and behind them stays here. Only of a decoder whose layers share nothing but the
        hidden state.
        """
        assert isinstance(self._stem, PlainStem)
        self._own, self._others = range(others[0][1].start), list(others)

    @property
    def _stages(self) -> list[tuple[Decoder, range]]:
        """Who runs which layers, in order. Kept apart, as a decoder that holds itself is not freed with its model."""
        return [(self, self._own), *self._others]

    def new_cache(self, capacity: int, num_beams: int = 1) -> Cache:
        assert num_beams == 1, "only the answers to a source are searched for"
        with self._layers.rows_of_sequence() as shared:
            states = [decoder._attention[i].new_state(capacity) for decoder, layers in self._stages for i in layers]
            states += self._stem.new_states(capacity)
        limits = sorted({rope.limit for rope in self.config.ropes if rope.beyond is not None})
        return Cache(states, capacity, limits, shared)

    @property
    def sees_whole_pictures(self) -> bool:
        """Whether a pass must have all of a picture's tokens or none."""
        return any(self.config.attention_of(i).sight.sees == "picture" for i in range(self.config.num_layers))

    def room_that_rotates(self, capacity: int) -> int:
        """The capacity of a cache where that decides how positions are rotated in it; else 0."""
        by_room = (r.within(capacity, capacity) is not r.within(r.limit + 1, capacity) for r in self.config.ropes)
        return capacity if any(by_room) else 0

    def forward(
        self,
        ids: Sequence[int],
        cache: Cache,
        between_layers: Callable[[], None] | None = None,
        *,
        of_tokens: int = 0,
        last_only: bool = True,
    ) -> Float32Array:
        """Logits [1 or tokens, vocab] of the tokens `ids`, which follow what the cache holds.

        of_tokens: see NewTokens; the cache may hold the beginning of a prompt from a request before. Where
        Cache.outgrown says so, it must be empty.
        between_layers may raise to give the pass up; the cache is then as it was before.
        """

        return self.step([NewTokens(ids, cache, of_tokens)], between_layers, last_only=last_only)

    def step(
        self, parts: Sequence[NewTokens], between_layers: Callable[[], None] | None = None, *, last_only: bool = True
    ) -> Float32Array:
        """Logits [parts or tokens, vocab] of tokens of several sequences, which go through the layers together; a part
        whose tokens are tried has those of each.

        Arguments as of `forward`; each part is a pass of its own, and gets the logits that it would get alone: on the
        CPU bit for bit, if it is the only one, or if all are rounded_alike, and no more than MOST_ROWS together where
        none is of a pass of more (numerics.md). A pass that is given up is given up for all.
        """

        def compute(x: Hidden, spans: Sequence[Span[Positions]]) -> Hidden:
            kinds: Sequence[Sequence[Span[Positions]]] = [spans, *others]
            x = self._stem.begin(x)
            for decoder, layers in self._stages:
                if decoder is not self:
                    x = decoder._layers.carried(x)
                    kinds = decoder._spans(parts)
                decoder._run(layers, x, kinds, between_layers)
            if self._others:
                x = self._layers.carried(x)
            self._tell_hidden(x, spans)
            pick = self._rows_of_logits(parts, spans) if last_only else lambda rows: rows
            logits = self.ends.head(self._last_norm(self._stem.end(x, pick)))
            for part in parts:
                if not part.tried:
                    part.cache.commit(len(part.ids))
            return logits

        self._profiler.lap("other")
        for part in parts:
            begin_pass(part.cache, len(part.ids) if part.tried else 0)
        x = joined(self._layers.weights.math, [self._inputs(part) for part in parts])
        size = max(part.of_tokens or len(part.ids) for part in parts)
        self._layers.begin_pass(size)  # behind a tower, whose passes are its own
        spans, *others = self._spans(parts)
        logits = self._layers.run_or_replay(compute, x, spans)
        for part in parts:
            self._stem.seen(of_vocabulary(part.ids, part.cache.pictures, self._stem.picture_id), part.cache)
        self._profiler.lap("head")
        return logits

    def _inputs(self, part: NewTokens) -> Array:
        """What layers are given of a part, whose sequence is told how far it goes."""
        ids, cache, of_tokens, _ = part
        reach = max(of_tokens, cache.length + len(ids))
        assert not cache.outgrown(reach), "the caller begins such a sequence anew"
        cache.reach = reach
        x = self._stem.inputs(of_vocabulary(ids, cache.pictures, self._stem.picture_id), cache)
        if self.config.embedding_scale != 1.0:
            x *= self.config.embedding_scale
        embedded = x[:, : self.config.attention.hidden_size]
        put_rows(embedded, cache.pictures, cache.length, self._layers.weights.math.of_host)
        return x

    def _spans(self, parts: Sequence[NewTokens]) -> list[list[Span[Positions]]]:
        """The rows of each part, by kind of positions."""
        ends = list(accumulate(len(part.ids) for part in parts))
        return [
            [
                Span(slice(end - len(ids), end), cache, rotary(cache.length, len(ids), cache))
                for (ids, cache, *_), end in zip(parts, ends, strict=True)
            ]
            for rotary in self._rotaries
        ]

    def _rows_of_logits(
        self, parts: Sequence[NewTokens], spans: Sequence[Span[Positions]]
    ) -> Callable[[Hidden], Hidden]:
        """What picks the row of each part's last token, and all rows of one that is tried."""
        if len(spans) == 1:
            return lambda x: x if parts[0].tried else x[-1:]
        joined = self._layers.weights.math.concatenate
        picked = [
            span.rows if part.tried else slice(span.rows.stop - 1, span.rows.stop)
            for part, span in zip(parts, spans, strict=True)
        ]
        return lambda x: joined([x[rows] for rows in picked], 0)

    def _tell_hidden(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        """Gives sequences that want it what the head is given of each of their tokens."""
        if any(span.cache.on_hidden is not None for span in spans):
            hidden = self._last_norm(self._stem.end(x, lambda rows: rows))
            for span in spans:
                if span.cache.on_hidden is not None:
                    span.cache.on_hidden(span.cache.length, hidden[span.rows])

    def _run(
        self,
        layers: range,
        x: Hidden,
        kinds: Sequence[Sequence[Span[Positions]]],
        between_layers: Callable[[], None] | None,
    ) -> None:
        """Runs some of the layers, which change x."""
        with_pictures = [span for span in kinds[0] if span.cache.pictures]
        watched = [(span, told) for span in kinds[0] if (told := span.cache.on_layer) is not None]
        for layer in layers:
            attention, block = self._attention[layer], self._blocks[layer]
            if between_layers is not None:
                between_layers()
            attention.add_rows(x, kinds[self._rotary_of[layer]])
            self._profiler.lap("attention")
            if layer + 1 < layers.stop:
                self._look_ahead(layer, x)
            block.add_to(x)
            for rows, cache in ((span.rows, span.cache) for span in with_pictures):
                add_rows(x[rows], cache.pictures, cache.length, self._layers.weights.math.of_host, layer)
            for span, told in watched:
                told(layer, span.cache.length, x[span.rows])
            self._profiler.lap("experts")

    def _look_ahead(self, layer: int, x: Hidden) -> None:
        """Guesses the next layer's routing by its own router on the state before this layer's experts."""
        if not self._experts.wants_expectations:
            return
        if (block := self._routed[layer + 1]) is not None:
            self._experts.expect(block.moe_layer, block.router(x)[1])
            self._profiler.lap("router")


def head_of(weights: Weights, matrix: str, scale: float = 1.0, bias: str | None = None) -> Callable[[Hidden], Array]:
    """What makes logits, which are multiplied by `scale`, of normed hidden states."""
    product = weights.linear(matrix, bias)
    return product if scale == 1.0 else lambda x: product(x) * scale


def outer_shapes(config: DecoderConfig) -> Shapes:
    """Embedding, norms and head."""
    hidden = config.attention.hidden_size
    own = config.names.norms
    of_layer = [name for name in (own.attention, own.behind_attention, own.block) if name is not None]
    norms = [
        *(f"{config.prefix}{name}" for name in (config.names.last_norm,) if name is not None),
        *(config.module(i, n) for i in range(config.num_layers) for n in of_layer),
    ]
    shapes: Shapes = {config.embedding: (config.vocab_size, hidden)}
    shapes |= {f"{norm}.weight": (hidden,) for norm in norms}
    if config.attention.norm == "layer":
        shapes |= {f"{norm}.bias": (hidden,) for norm in norms}
    if not config.tied_embeddings:
        shapes[config.head] = (config.vocab_size, hidden)
    shapes |= {rope.learned: (rope.rotary_dim // 2,) for rope in config.ropes if rope.learned is not None}
    if config.logits.bias:
        shapes["lm_head.bias"] = (config.vocab_size,)
    return shapes


def copies(config: DecoderConfig) -> dict[str, str]:
    """The head where config.json says that it is the embedding, as TensorPlan.copies has it."""
    return {config.head: config.embedding} if config.tied_embeddings else {}


def frequencies(config: DecoderConfig) -> dict[str, Callable[[str], list[Expected]]]:
    """The tables of frequencies that old exporters write beside the weights, as TensorPlan.follows has them.

    Some write them as layers use them, some as they were before the config stretched them.
    """

    def known(name: str) -> list[Expected]:
        tables = [table for rope in config.ropes for table in (rope.frequencies, rope.unstretched)]
        return [Expected(table.astype(np.float64)) for table in tables if table is not None]

    prefix, layers = re.escape(config.prefix), re.escape(config.names.layers)
    return {rf"{prefix}({layers}\.\d+\.self_attn\.)?rotary_emb\.(original_)?inv_freq": known}


def linear_names(shapes: Shapes) -> frozenset[str]:
    """The dense tensors that may be quantised: projections of attention and of dense MLPs, `*_proj.weight`."""
    return frozenset(name for name in shapes if name.endswith("_proj.weight"))


def head(config: DecoderConfig) -> tuple[str, str]:
    """The matrix that makes logits: its name in the checkpoint, and in the store where it is quantised."""
    return (config.embedding if config.tied_embeddings else config.head), HEAD
