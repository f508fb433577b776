"""What encoder-decoder families share: attention over the sequence itself or over the source, and the two stacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.laps import Laps
from moeinf.models.array_math import Array, ArrayMath
from moeinf.models.cache import Cache
from moeinf.models.decoder import MoeBlock
from moeinf.models.layers import Block, Layers, Shapes
from moeinf.types import (
    DType,
    ExpertForm,
    ExpertPiece,
    Experts,
    Float32Array,
    Hidden,
    IntArray,
    ModelInfo,
    MoeShape,
    TensorPlan,
)

Bias = Callable[[int, int], Array | None]  # (first place, tokens) to what is added to scores [heads or 1, tokens, keys]
Norm = Callable[[Hidden], Hidden]
QUERIES_AT_ONCE = 128  # of a source: bounds what their scores take


class SourceState:
    """Keys and values of one decoder layer, [beams, heads, tokens, head_dim] float32.

    Those of what each beam has decoded, with room for `capacity` tokens; and those of the source, one for all beams.
    """

    rewinds = True

    def __init__(self, num_heads: int, capacity: int, head_dim: int) -> None:
        self.keys: Float32Array = np.empty((1, num_heads, capacity, head_dim), np.float32)
        self.values: Float32Array = np.empty_like(self.keys)
        self.source: tuple[Array, Array] | None = None

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read

    def keep(self, beams: Sequence[int], length: int) -> None:
        """The numbered beams go on, each as often as it is named, with their first `length` tokens."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old if len(beams) == len(old) else np.empty((len(beams), *old.shape[1:]), np.float32)
            new[:, :, :length] = old[list(beams), :, :length]
            setattr(self, name, new)


class SourceCache(Cache):
    """Of one source, and of the beams that are decoded side by side."""

    beams = 1

    def keep(self, beams: Sequence[int]) -> None:
        """See SourceState.keep."""
        if list(beams) != list(range(self.beams)):
            for state in self.states:
                state.keep(beams, self.length)
            self.beams = len(beams)


@dataclass(frozen=True, slots=True)
class Heads:
    """The form of every attention of a family, and what it calls its projections."""

    num_heads: int
    head_dim: int
    scale: float  # of the scores
    biased: bool
    names: tuple[str, str, str, str] = ("q", "k", "v", "o")

    def shapes(self, prefix: str, hidden: int) -> Shapes:
        inner = self.num_heads * self.head_dim
        sizes = zip(self.names, ((inner, hidden), (inner, hidden), (inner, hidden), (hidden, inner)), strict=True)
        shapes: Shapes = {f"{prefix}{name}.weight": shape for name, shape in sizes}
        return shapes | ({f"{n.removesuffix('weight')}bias": (s[0],) for n, s in shapes.items()} if self.biased else {})


class Attention:
    """x += attention(norm(x)), over the sequence itself or over the source."""

    def __init__(self, layers: Layers, heads: Heads, prefix: str, norm: Norm) -> None:
        self._math, self._heads, self._norm = layers.math, heads, norm
        self._q, self._k, self._v, self._o = (
            layers.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if heads.biased else None)
            for name in heads.names)

    def new_state(self, capacity: int) -> SourceState:
        return SourceState(self._heads.num_heads, capacity, self._heads.head_dim)

    def over_itself(self, x: Hidden, bias: Array | None) -> None:
        """Each token of the source sees every other."""
        hidden = self._norm(x)
        self._add(x, self._split(self._q(hidden), 1), self.keys_values(hidden), bias)

    def over_past(self, x: Hidden, state: SourceState, cache: SourceCache, bias: Array | None) -> None:
        """x [beams * tokens, hidden]: the tokens of each beam see what it has decoded; stores their keys and values."""
        hidden = self._norm(x)
        keys, values = self.keys_values(hidden, cache.beams)
        end = cache.length + len(x) // cache.beams
        state.keys[:, :, cache.length : end], state.values[:, :, cache.length : end] = keys, values
        seen = state.keys[:, :, :end], state.values[:, :, :end]
        self._add(x, self._split(self._q(hidden), cache.beams), seen, bias)

    def over_source(self, x: Hidden, state: SourceState) -> None:
        """Whatever beam a row belongs to, it sees all of the source."""
        assert state.source is not None, "a source is encoded first"
        self._add(x, self._split(self._q(self._norm(x)), 1), state.source, None)

    def keys_values(self, hidden: Hidden, beams: int = 1) -> tuple[Array, Array]:
        return self._split(self._k(hidden), beams), self._split(self._v(hidden), beams)

    def _split(self, x: Array, beams: int) -> Array:
        """[beams * tokens, heads * head_dim] -> [beams, heads, tokens, head_dim]"""
        return x.reshape(beams, -1, self._heads.num_heads, self._heads.head_dim).swapaxes(1, 2)

    def _add(self, x: Hidden, q: Array, seen: tuple[Array, Array], bias: Array | None) -> None:
        keys, values = seen
        parts = []
        for start in range(0, q.shape[2], QUERIES_AT_ONCE):
            scores = (q[:, :, start : start + QUERIES_AT_ONCE] @ keys.swapaxes(-1, -2)) * np.float32(self._heads.scale)
            if bias is not None:
                scores = scores + bias[:, start : start + QUERIES_AT_ONCE]
            parts.append(self._math.softmax(scores) @ values)
        mixture = self._math.concatenate(parts, 2).swapaxes(1, 2)  # [beams, tokens, heads, head_dim]
        x += self._o(mixture.reshape(len(x), -1))


class FeedForward:
    """x += down(relu(up(norm(x)))): the dense block."""

    def __init__(self, layers: Layers, prefix: str, names: tuple[str, str], biased: bool, norm: Norm) -> None:
        self._math, self._norm = layers.math, norm
        self._up, self._down = (
            layers.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if biased else None) for name in names)

    def add_to(self, x: Hidden) -> None:
        x += self._down(self._math.relu(self._up(self._norm(x))))


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    attention: Attention
    block: Block


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attention: Attention
    over_source: Attention
    block: Block


class EncoderDecoder:
    """A whole model: `encode` a source, then `forward` as of a decoder, of one answer or of several beams."""

    def __init__(self, layers: Layers, experts: Experts, laps: Laps, *,
                 embed: Callable[[Sequence[int], IntArray], Hidden],
                 encoder: Sequence[EncoderLayer], encoder_bias: Bias, encoder_norm: Norm,
                 decoder: Sequence[DecoderLayer], decoder_bias: Bias, head: Callable[[Hidden], Hidden]) -> None:
        """embed: token ids and their places to hidden states. The biases of scores hold what a token must not see."""
        self._embed, self._head = embed, head
        self._encoder, self._encoder_bias, self._encoder_norm = encoder, encoder_bias, encoder_norm
        self._decoder, self._decoder_bias = decoder, decoder_bias
        self._experts, self._laps = experts, laps

    def new_cache(self, capacity: int) -> SourceCache:
        return SourceCache([layer.attention.new_state(capacity) for layer in self._decoder], capacity)

    def encode(self, ids: Sequence[int], cache: SourceCache, between_layers: Callable[[], None] = lambda: None) -> None:
        """The cache then holds this source and nothing decoded. between_layers may raise to give the pass up."""
        cache.truncate(0)
        cache.keep([0])
        self._laps.lap("other")
        x, bias = self._embed(ids, np.arange(len(ids))), self._encoder_bias(0, len(ids))
        blocks = [layer.block for layer in self._encoder]
        for i, layer in enumerate(self._encoder):
            between_layers()
            layer.attention.over_itself(x, bias)
            self._laps.lap("attention")
            self._through_block(blocks, i, x)
        x = self._encoder_norm(x)
        for layer_below, state in zip(self._decoder, cache.states, strict=True):
            state.source = layer_below.over_source.keys_values(x)
        self._laps.lap("attention")

    def forward(self, ids: Sequence[int], cache: SourceCache, between_layers: Callable[[], None] | None = None, *,
                last_only: bool = True) -> Float32Array:
        """Logits [1 or tokens, vocab] of the tokens that follow what was decoded.

        With several beams: `ids` has as many tokens of each, one beam behind the other, and so have the logits.
        between_layers may raise to give the pass up; the cache is then as it was before.
        """
        tokens = len(ids) // cache.beams
        self._laps.lap("other")
        x = self._embed(ids, np.tile(np.arange(cache.length, cache.length + tokens), cache.beams))
        bias = self._decoder_bias(cache.length, tokens)
        blocks = [layer.block for layer in self._decoder]
        for i, (layer, state) in enumerate(zip(self._decoder, cache.states, strict=True)):
            if between_layers is not None:
                between_layers()
            layer.attention.over_past(x, state, cache, bias)
            layer.over_source.over_source(x, state)
            self._laps.lap("attention")
            self._through_block(blocks, i, x)
        logits: Float32Array = self._head(np.ascontiguousarray(x[tokens - 1 :: tokens]) if last_only else x)
        cache.advance(tokens)
        self._laps.lap("head")
        return logits

    def _through_block(self, blocks: Sequence[Block], i: int, x: Hidden) -> None:
        following = blocks[i + 1] if i + 1 < len(blocks) else None
        if self._experts.wants_expectations and isinstance(following, MoeBlock):  # as Decoder guesses the next layer's
            self._experts.expect(following.moe_layer, following.router(x)[1])
            self._laps.lap("router")
        blocks[i].add_to(x)
        self._laps.lap("experts")


def causal(first: int, tokens: int) -> Float32Array | None:
    """[1, tokens, first + tokens]: minus infinity for what comes later. None for a single token, which sees all."""
    if tokens == 1:
        return None
    later = np.arange(first + tokens) > np.arange(first, first + tokens)[:, None]
    mask: Float32Array = np.where(later, np.float32(-np.inf), np.float32(0))[None]
    return mask


def nth_of_its_expert(math: ArrayMath, ids: Array, num_experts: int) -> Array:
    """ids [tokens, 1] -> [tokens, 1]: how many tokens up to this one the router gave to the same expert."""
    return math.take((ids == math.of_host(np.arange(num_experts)[None])).cumsum(0), ids)


def plain_experts_plan(moe: MoeShape, dense: Shapes, blocks: Sequence[str], sizes: tuple[int, int],
                       names: tuple[str, str], *, biased: bool, embedding: str, tied: bool,
                       matrices: frozenset[str], ignored: tuple[str, ...]) -> TensorPlan:
    """Experts without a gate, each with tensors of its own: `<block>experts.expert_<e>.<name>.weight`.

    sizes: hidden and intermediate; names: what the family calls the matrices up and down.
    """
    if moe.top_k > moe.num_experts:
        raise CheckpointError(f"config.json: a token cannot use {moe.top_k} of {moe.num_experts} experts")
    hidden, intermediate = sizes
    parts: Shapes = {"up": (intermediate, hidden), "down": (hidden, intermediate)}
    own = {"up": f"{names[0]}.weight", "down": f"{names[1]}.weight"}
    if biased:
        parts |= {"up_bias": (intermediate,), "down_bias": (hidden,)}
        own |= {"up_bias": f"{names[0]}.bias", "down_bias": f"{names[1]}.bias"}
    experts = {f"{block}experts.expert_{expert}.{own[part]}": (shape, (ExpertPiece(layer, expert, part, 0),))
               for layer, block in enumerate(blocks) for expert in range(moe.num_experts)
               for part, shape in parts.items()}
    return TensorPlan(moe, parts, dense, (experts,), ignored, matrices, frozenset({embedding}),
                      (embedding if tied else "lm_head.weight", "lm_head.weight"), ExpertForm("relu", False, biased))


def seq2seq_info(architecture: str, plan: TensorPlan, heads: Heads, *, context_length: int, hidden_size: int,
                 num_layers: int, num_decoder_layers: int, vocab_size: int, dtype: DType) -> ModelInfo:
    """Sizes of such a model. A token of the context has a place in the source and in the answer."""
    expert = _elements(plan.parts)
    dense = _elements(plan.dense)
    return ModelInfo(
        architecture=architecture, num_params=dense + expert * plan.moe.total_experts,
        active_params=dense + expert * plan.moe.num_layers * plan.moe.top_k, num_shared_experts=0,
        context_length=context_length, hidden_size=hidden_size, num_layers=num_layers, vocab_size=vocab_size,
        kv_bytes_per_token=2 * 2 * num_decoder_layers * heads.num_heads * heads.head_dim * 4,  # always float32
        dtype=dtype,
    )


def _elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
