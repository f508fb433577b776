"""What encoder-decoder families share: attention over the sequence itself or over the source, and the two stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf.models.layers.array_math import A, Array, ArrayMath, ArrayMathOf, Hidden
from moeinf.models.layers.attention_config import Heads
from moeinf.models.layers.kv_cache import Cache, LayerState, NewTokens, Span
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.protocol import Block, Experts, Layers, P, P_contra, Part, Positions, R, Weights
from moeinf.types import Activation, Float32Array, IntArray, Profiler

QUERIES_AT_ONCE = 128  # of a source: bounds what their scores take

Bias = Callable[[IntArray], Array]  # how far ahead of the query a key lies, to what is added to scores [heads, ...]
Norm = Callable[[Hidden], Hidden]


class BeamsOf(LayerState, Protocol[A, P_contra]):
    """Keys and values of one decoder layer, float32: of the source, one for all beams, and of what each has decoded.

    q, k, v [beams * tokens, heads * head_dim]: one token of each of cache.beams, or several tokens of a single beam.
    """

    def read_source(self, keys: A, values: A) -> None:
        """keys, values [tokens, heads * head_dim] of a new source."""
        ...

    def keep(self, beams: A, length: int) -> None:
        """The numbered beams (an int64 array of the library that computes) go on, each as often as it is named, with
        their first `length` tokens."""
        ...

    def over_source(self, q: A) -> A:
        """Whatever beam a row belongs to, it sees all of the source."""
        ...

    def over_past(self, q: A, k: A, v: A, cache: Cache, positions: P_contra) -> A:
        """Stores k and v behind cache.length; each token sees its own beam up to itself."""
        ...


Beams = BeamsOf[Array, Positions]


@dataclass(frozen=True, slots=True)
class BeamsPart(Part[A, P, R, BeamsOf[A, P]]):
    """With room for so many tokens of so many beams."""

    heads: Heads
    capacity: int
    num_beams: int
    bias: A | None  # [heads, capacity]: added to the scores of what a beam has decoded, by how many positions back


class SourceCache(Cache):
    """Of one source, and of the beams that are decoded side by side."""

    def __init__(self, states: Sequence[Beams], capacity: int) -> None:
        super().__init__(states, capacity)
        self._kept: list[int] | None = None

    def keep(self, beams: Sequence[int]) -> None:
        """The numbered beams go on, each as often as it is named; their keys and values are moved by the next pass."""
        assert self._kept is None, "a pass comes between"
        self._kept = None if list(beams) == list(range(self.beams)) else list(beams)
        self.beams = len(beams)

    def move_kept(self, of_host: Callable[[IntArray], Array]) -> None:
        """The first work of a pass. Where the device has no memory for the list of beams, nothing has moved."""
        if self._kept is not None:
            beams = of_host(np.array(self._kept))
            for state in self.states:
                state.keep(beams, self.length)
            self._kept = None

    def begin(self) -> None:
        """Of a new source: one beam, which is empty."""
        self.truncate(0)
        self.beams, self._kept = 1, None


def split_heads(x: A, beams: int, num_heads: int) -> A:
    """[beams * tokens, heads * head_dim] -> [beams, heads, tokens, head_dim]"""
    return x.reshape(beams, len(x) // beams, num_heads, -1).swapaxes(1, 2)


def attended(math: ArrayMathOf[A], q: A, keys: A, values: A, scale: float, bias: A | None) -> A:
    """softmax(scale * q keys^T + bias) values, [beams * tokens, heads * head_dim].

    q [beams, heads, tokens, head_dim]; keys, values [beams or 1, heads, positions, head_dim]; bias [heads or 1, tokens,
    positions].
    """
    parts = []
    for start in range(0, q.shape[2], QUERIES_AT_ONCE):
        scores = (q[:, :, start : start + QUERIES_AT_ONCE] @ keys.swapaxes(-1, -2)) * np.float32(scale)
        if bias is not None:
            scores = scores + bias[:, start : start + QUERIES_AT_ONCE]
        parts.append(math.softmax(scores) @ values)
    mixture = math.concatenate(parts, 2).swapaxes(1, 2)  # [beams, tokens, heads, head_dim]
    return mixture.reshape(q.shape[0] * q.shape[2], -1)


class Attention:
    """x += attention(norm(x)), over the sequence itself or over the source."""

    def __init__(self, layers: Layers, heads: Heads, prefix: str, norm: Norm) -> None:
        self._layers, self._heads, self._norm = layers, heads, norm
        self._q, self._k, self._v, self._o = (
            layers.weights.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if heads.biased else None)
            for name in heads.names
        )

    def new_state(self, capacity: int, num_beams: int, bias: Array | None) -> Beams:
        return self._layers.make(BeamsPart(self._heads, capacity, num_beams, bias))

    def over_itself(self, x: Hidden, bias: Array | None) -> None:
        """Each token of the source sees every other."""
        hidden = self._norm(x)
        q, k, v = (split_heads(part(hidden), 1, self._heads.num_heads) for part in (self._q, self._k, self._v))
        x += self._o(attended(self._layers.weights.math, q, k, v, self._heads.scale, bias))

    def over_past(self, x: Hidden, state: Beams, cache: Cache, positions: Positions) -> None:
        """The tokens of each beam see what it has decoded."""
        hidden = self._norm(x)
        x += self._o(state.over_past(self._q(hidden), self._k(hidden), self._v(hidden), cache, positions))

    def read_source(self, source: Hidden, state: Beams) -> None:
        state.read_source(self._k(source), self._v(source))

    def over_source(self, x: Hidden, state: Beams) -> None:
        x += self._o(state.over_source(self._q(self._norm(x))))


class FeedForward:
    """x += down(f(up(norm(x)))) of a function f: the dense block."""

    def __init__(
        self, weights: Weights, prefix: str, names: tuple[str, str], biased: bool, norm: Norm, activation: Activation
    ) -> None:
        up, down = (f"{prefix}{name}" for name in names)
        self._activated = weights.linear(f"{up}.weight", f"{up}.bias" if biased else None, activation)
        self._down, self._norm = weights.linear(f"{down}.weight", f"{down}.bias" if biased else None), norm

    def add_to(self, x: Hidden) -> None:
        x += self._down(self._activated(self._norm(x)))


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    attention: Attention
    block: Block


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attention: Attention
    over_source: Attention
    block: Block


@dataclass(frozen=True, slots=True)
class Encoder:
    """embed: token ids and their positions to hidden states; bias: added to the scores of every layer."""

    embed: Callable[[Sequence[int], IntArray], Hidden]
    layers: Sequence[EncoderLayer]
    norm: Norm  # behind the last layer
    bias: Bias | None = None


@dataclass(frozen=True, slots=True)
class AnswerDecoder:
    """embed and bias: as of the encoder; head: hidden states to logits."""

    embed: Callable[[Sequence[int], IntArray], Hidden]
    layers: Sequence[DecoderLayer]
    head: Callable[[Hidden], Hidden]
    bias: Bias | None = None


class EncoderDecoder:
    """A whole model: `encode` a source, then `forward` as of a decoder, of one answer or of several beams."""

    def __init__(
        self, layers: Layers, experts: Experts, profiler: Profiler, encoder: Encoder, decoder: AnswerDecoder
    ) -> None:
        self._layers, self._positions = layers, layers.rotary(None, 0)
        self._encoder, self._decoder = encoder, decoder
        self._experts, self._profiler = experts, profiler

    def new_cache(self, capacity: int, num_beams: int = 1) -> SourceCache:
        """With room for so many tokens of a source, and of each beam."""
        bias = None if self._decoder.bias is None else self._decoder.bias(-np.arange(capacity))
        return SourceCache(
            [layer.attention.new_state(capacity, num_beams, bias) for layer in self._decoder.layers], capacity
        )

    def encode(self, ids: Sequence[int], cache: Cache, between_layers: Callable[[], None] = lambda: None) -> None:
        """The cache then holds this source and nothing decoded. between_layers may raise to give the pass up."""
        assert isinstance(cache, SourceCache), "a cache of new_cache"
        cache.begin()
        self._profiler.lap("other")
        self._layers.begin_pass(len(ids))
        positions = np.arange(len(ids))
        x = self._encoder.embed(ids, positions)
        bias = None if self._encoder.bias is None else self._encoder.bias(positions - positions[:, None])
        blocks = [layer.block for layer in self._encoder.layers]
        for i, layer in enumerate(self._encoder.layers):
            between_layers()
            layer.attention.over_itself(x, bias)
            self._profiler.lap("attention")
            self._through_block(blocks, i, x)
        x = self._encoder.norm(x)
        for decoder_layer, state in zip(self._decoder.layers, cache.states, strict=True):
            decoder_layer.over_source.read_source(x, state)
        self._profiler.lap("attention")

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None] | None = None) -> Float32Array:
        """`forward` of the one sequence that it has at a time."""
        (part,) = parts
        return self.forward(part.ids, part.cache, between_layers, of_tokens=part.of_tokens)

    def forward(
        self,
        ids: Sequence[int],
        cache: Cache,
        between_layers: Callable[[], None] | None = None,
        *,
        of_tokens: int = 0,
        last_only: bool = True,
    ) -> Float32Array:
        """Logits [beams or tokens, vocab] of the tokens that follow what was decoded.

        `ids` is one token of each beam, or several tokens of a single one, of a pass over of_tokens (0: these alone);
        last_only: logits of the last alone.
        between_layers may raise to give the pass up; the cache is then as it was before.
        """
        assert isinstance(cache, SourceCache), "a cache of new_cache"
        tokens = len(ids) // cache.beams
        assert len(ids) == tokens * cache.beams and 1 in (tokens, cache.beams)
        blocks = [layer.block for layer in self._decoder.layers]

        def compute(x: Hidden, spans: Sequence[Span[Positions]]) -> Hidden:
            positions = spans[0].positions
            for i, (layer, state) in enumerate(zip(self._decoder.layers, cache.states, strict=True)):
                if between_layers is not None:
                    between_layers()
                layer.attention.over_past(x, state, cache, positions)
                layer.over_source.over_source(x, state)
                self._profiler.lap("attention")
                self._through_block(blocks, i, x)
            logits = self._decoder.head(x[-cache.beams :] if last_only else x)
            cache.commit(tokens)
            return logits

        self._profiler.lap("other")
        self._layers.begin_pass(of_tokens or tokens)
        cache.move_kept(self._layers.weights.math.of_host)
        x = self._decoder.embed(ids, cache.length + np.arange(tokens).repeat(cache.beams))
        span = Span(slice(0, len(ids)), cache, self._positions(cache.length, tokens, cache))
        logits = self._layers.run_or_replay(compute, x, [span])
        self._profiler.lap("head")
        return logits

    def _through_block(self, blocks: Sequence[Block], i: int, x: Hidden) -> None:
        following = blocks[i + 1] if i + 1 < len(blocks) else None
        if self._experts.wants_expectations and isinstance(following, MoeBlock):  # as Decoder guesses the next layer's
            self._experts.expect(following.moe_layer, following.router(x)[1])
            self._profiler.lap("router")
        blocks[i].add_to(x)
        self._profiler.lap("experts")


def nth_of_its_expert(math: ArrayMath, ids: Array, num_experts: int) -> Array:
    """ids [tokens, 1] -> [tokens, 1]: how many tokens up to this one the router gave to the same expert."""
    return math.take((ids == math.of_host(np.arange(num_experts)[None])).cumsum(0), ids)
