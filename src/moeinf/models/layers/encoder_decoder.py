"""What encoder-decoder families share: attention over the sequence itself or over the source, and the two stacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.models.layers.array_math import Array, ArrayMath
from moeinf.models.layers.decoder import MoeBlock
from moeinf.models.layers.encoder_attention import attended, split_heads
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Beams, Block, Layers, Places, Shapes, Weights, block_work
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
    Profiler,
    TensorPlan,
    Work,
)

Bias = Callable[[IntArray], Array]  # how far ahead of the query a key lies, to what is added to scores [heads, ...]
Norm = Callable[[Hidden], Hidden]


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
        self._layers, self._heads, self._norm = layers, heads, norm
        self._q, self._k, self._v, self._o = (
            layers.weights.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if heads.biased else None)
            for name in heads.names
        )

    def new_state(self, capacity: int, num_beams: int, bias: Array | None) -> Beams:
        h = self._heads
        return self._layers.beams(h.num_heads, h.head_dim, h.scale, capacity, num_beams, bias)

    def over_itself(self, x: Hidden, bias: Array | None) -> None:
        """Each token of the source sees every other."""
        hidden = self._norm(x)
        q, k, v = (split_heads(part(hidden), 1, self._heads.num_heads) for part in (self._q, self._k, self._v))
        x += self._o(attended(self._layers.weights.math, q, k, v, self._heads.scale, bias))

    def over_past(self, x: Hidden, state: Beams, cache: Cache, places: Places) -> None:
        """The tokens of each beam see what it has decoded."""
        hidden = self._norm(x)
        x += self._o(state.over_past(self._q(hidden), self._k(hidden), self._v(hidden), cache, places))

    def read_source(self, source: Hidden, state: Beams) -> None:
        state.read_source(self._k(source), self._v(source))

    def over_source(self, x: Hidden, state: Beams) -> None:
        x += self._o(state.over_source(self._q(self._norm(x))))


class FeedForward:
    """x += down(relu(up(norm(x)))): the dense block."""

    def __init__(self, weights: Weights, prefix: str, names: tuple[str, str], biased: bool, norm: Norm) -> None:
        self._math, self._norm = weights.math, norm
        self._up, self._down = (
            weights.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if biased else None) for name in names
        )

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

    def __init__(
        self,
        layers: Layers,
        experts: Experts,
        profiler: Profiler,
        *,
        embed: Callable[[Sequence[int], IntArray], Hidden],
        encoder: Sequence[EncoderLayer],
        encoder_bias: Bias | None,
        encoder_norm: Norm,
        decoder: Sequence[DecoderLayer],
        decoder_bias: Bias | None,
        head: Callable[[Hidden], Hidden],
        embed_source: Callable[[Sequence[int], IntArray], Hidden] | None = None,
    ) -> None:
        """embed: token ids and their places to hidden states; embed_source: the encoder's, where it has its own."""
        self._layers, self._places = layers, layers.rotary(None, 0)
        self._embed, self._embed_source, self._head = embed, embed_source or embed, head
        self._encoder, self._encoder_bias, self._encoder_norm = encoder, encoder_bias, encoder_norm
        self._decoder, self._decoder_bias = decoder, decoder_bias
        self._experts, self._profiler = experts, profiler

    def new_cache(self, capacity: int, num_beams: int = 1) -> SourceCache:
        """With room for so many tokens of a source, and of each beam."""
        bias = None if self._decoder_bias is None else self._decoder_bias(-np.arange(capacity))
        return SourceCache([layer.attention.new_state(capacity, num_beams, bias) for layer in self._decoder], capacity)

    def encode(self, ids: Sequence[int], cache: SourceCache, between_layers: Callable[[], None] = lambda: None) -> None:
        """The cache then holds this source and nothing decoded. between_layers may raise to give the pass up."""
        cache.begin()
        self._profiler.lap("other")
        self._layers.begin_pass(len(ids))
        places = np.arange(len(ids))
        x = self._embed_source(ids, places)
        bias = None if self._encoder_bias is None else self._encoder_bias(places - places[:, None])
        blocks = [layer.block for layer in self._encoder]
        for i, layer in enumerate(self._encoder):
            between_layers()
            layer.attention.over_itself(x, bias)
            self._profiler.lap("attention")
            self._through_block(blocks, i, x)
        x = self._encoder_norm(x)
        for decoder_layer, state in zip(self._decoder, cache.states, strict=True):
            decoder_layer.over_source.read_source(x, state)
        self._profiler.lap("attention")

    def forward(
        self,
        ids: Sequence[int],
        cache: SourceCache,
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
        tokens = len(ids) // cache.beams
        assert len(ids) == tokens * cache.beams and 1 in (tokens, cache.beams)
        blocks = [layer.block for layer in self._decoder]

        def compute(x: Hidden, places: Places) -> Hidden:
            for i, (layer, state) in enumerate(zip(self._decoder, cache.states, strict=True)):
                if between_layers is not None:
                    between_layers()
                layer.attention.over_past(x, state, cache, places)
                layer.over_source.over_source(x, state)
                self._profiler.lap("attention")
                self._through_block(blocks, i, x)
            return self._head(x[-cache.beams :] if last_only else x)

        self._profiler.lap("other")
        self._layers.begin_pass(of_tokens or tokens)
        cache.move_kept(self._layers.weights.math.of_host)
        x = self._embed(ids, cache.length + np.arange(tokens).repeat(cache.beams))
        logits = self._layers.carry_out(compute, x, self._places(cache.length, tokens, cache.capacity), cache)
        cache.advance(tokens)
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


def plain_experts_plan(
    moe: MoeShape,
    dense: Shapes,
    blocks: Mapping[str, int],
    hidden: int,
    names: tuple[str, str],
    num_heads: int,
    *,
    biased: bool,
    embeddings: frozenset[str],
    head: str,
    matrices: frozenset[str],
    ignored: tuple[str, ...],
) -> TensorPlan:
    """Experts without a gate, each with tensors of its own: `<block>experts.expert_<e>.<name>.weight`.

    blocks: of each layer with experts, the prefix and the intermediate size. Smaller experts are filled up with zeros,
    of which relu makes zeros again. names: what the family calls the matrices up and down; head: the matrix that makes
    logits, which may be one of the embeddings.
    """
    parts = _plain_expert(hidden, max(blocks.values()), biased)
    own = {"up": f"{names[0]}.weight", "down": f"{names[1]}.weight"}
    own |= {"up_bias": f"{names[0]}.bias", "down_bias": f"{names[1]}.bias"}
    experts = {
        f"{block}experts.expert_{expert}.{own[part]}": (
            shape,
            (ExpertPiece(layer, expert, part, 0, filled=None if shape == parts[part] else shape),),
        )
        for layer, (block, intermediate) in enumerate(blocks.items())
        for expert in range(moe.num_experts)
        for part, shape in _plain_expert(hidden, intermediate, biased).items()
    }
    return TensorPlan(
        moe,
        parts,
        dense,
        (experts,),
        ignored,
        matrices,
        embeddings,
        (head, "lm_head.weight"),
        ExpertForm("relu", False, biased),
        work=Work(attention=8 * hidden, source=num_heads) | block_work(dense),
    )


def _plain_expert(hidden: int, intermediate: int, biased: bool) -> Shapes:
    parts: Shapes = {"up": (intermediate, hidden), "down": (hidden, intermediate)}
    return parts | ({"up_bias": (intermediate,), "down_bias": (hidden,)} if biased else {})


def seq2seq_info(
    architecture: str,
    plan: TensorPlan,
    heads: Heads,
    *,
    context_length: int,
    hidden_size: int,
    num_layers: int,
    num_decoder_layers: int,
    vocab_size: int,
    dtype: DType,
) -> ModelInfo:
    """Sizes of such a model. A token of the context has a place in the source and in the answer."""
    experts = _elements({name: shape for name, (shape, _) in plan.experts[0].items()})
    dense = _elements(plan.dense)
    return ModelInfo(
        architecture=architecture,
        num_params=dense + experts,
        active_params=dense + experts * plan.moe.top_k // plan.moe.num_experts,
        num_shared_experts=0,
        context_length=context_length,
        hidden_size=hidden_size,
        num_layers=num_layers,
        vocab_size=vocab_size,
        kv_bytes_per_token=2 * 2 * num_decoder_layers * heads.num_heads * heads.head_dim * 4,  # always float32
        dtype=dtype,
    )


def _elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
