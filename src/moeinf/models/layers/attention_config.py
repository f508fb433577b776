"""What layers of attention are told: their sizes and forms, where they stand in a model, and what they need."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.layers.rope import Rope
from moeinf.types import AttentionSizes, Float32Array, Workspace

SCORES_AT_ONCE = 1 << 22  # on a GPU, of a prompt in layers that add something to each
MAX_HEAD_DIM = 576  # what the native attention has room for

Shapes = dict[str, tuple[int, ...]]
MLP_NAMES = ("gate_proj", "up_proj", "down_proj")  # what most families call the matrices of a gated MLP
QueryGrowth = Literal["steps", "smooth", "power"]
NormKind = Literal["rms", "rms+1", "layer", "centred"]


@dataclass(frozen=True, slots=True)
class NormConfig:
    """A norm over the last dimension.

    "rms": x / rms(x) * weight; "rms+1": the same, of a weight that is stored less one; "layer": (x - mean) / std *
    weight + bias, the bias under the weight's name; "centred": the same without a bias.
    """

    name: str  # of its weight
    eps: float
    kind: NormKind = "rms"


@dataclass(frozen=True, slots=True)
class Sharpening:
    """Queries at position p are multiplied by a factor, so that attention to a long context does not flatten.

    (arXiv 2501.19399.) With n = (p + offset) / length it grows in "steps", 1 + sharpness ln(1 + floor(n)), is "smooth",
    1 + sharpness ln(max(1, n)), or is a "power", (1 + n)^sharpness. Only heads that a family makes itself are smooth.
    """

    sharpness: float
    length: int
    offset: int = 0
    growth: QueryGrowth = "steps"

    def factors(self, start: int, num_tokens: int) -> Float32Array:
        """[num_tokens, 1] of the positions from `start`."""
        places = np.arange(start, start + num_tokens) + self.offset
        share = places.astype(np.float32) / np.float32(self.length)
        if self.growth == "power":
            powers: Float32Array = np.power(1 + share, np.float32(self.sharpness))[:, None]
            return powers
        of_steps = np.log1p((places // self.length).astype(np.float32))
        logarithms = of_steps if self.growth == "steps" else np.log(np.maximum(share, 1))
        factors: Float32Array = (1 + np.float32(self.sharpness) * logarithms)[:, None]
        return factors


@dataclass(frozen=True, slots=True)
class Projections:
    """The matrices that make queries, keys and values of a hidden state, and the output of what all heads give."""

    bias: bool = False  # of queries, keys and values
    output_bias: bool = False
    fused: str | None = None  # the name of one matrix with the rows of queries, then of keys, then of values
    output: str = "o_proj"  # the name of the projection of all heads' outputs
    values_of_keys: bool = False  # values are what k_proj makes, too
    clip: float | None = None  # queries, keys and values lie between this and its negative
    value_dim: int | None = None  # of a head's values, where they are narrower than its keys; the cache does not know
    key_dim: int | None = None  # of a head's queries and keys, where they are narrower than its values: zeros fill them


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of queries and keys: of each head, of all heads together ("full"), or of each head behind its positions."""

    over: Literal["head", "full", "turned"] = "head"
    names: tuple[str, str] | None = ("q_norm", "k_norm")  # None: they have no weights
    of_values: bool = False  # an RMS norm without weights, over each head of the values


@dataclass(frozen=True, slots=True)
class Scores:
    """How the products of queries and keys become scores."""

    scale: float | None = None  # None: head_dim^-0.5
    sharpening: Sharpening | None = None  # of the queries
    sinks: str | None = None  # tensor with a further score of each head, whose weight goes nowhere


@dataclass(frozen=True, slots=True)
class Gate:
    """What multiplies the outputs of heads, made of the same hidden state as queries are."""

    name: str | None = None  # of the matrix that makes it; None: q_proj gives each head its query and then a gate
    per_head: bool = False  # one number for each head, not for each number of its output
    function: Literal["sigmoid", "softplus"] = "sigmoid"
    bias: str | None = None  # tensor with a number for each head, added to what a gate with a matrix is made of


@dataclass(frozen=True, slots=True)
class Sight:
    """Which tokens a token attends to."""

    window: int | None = None  # itself and the window-1 tokens before it
    chunked: bool = False  # instead, up to itself, its own one of the chunks of `window` tokens
    sees: Literal["past", "picture", "all"] = "past"  # "picture": a token of a picture also sees the rest of that
    most_chosen: int = 0  # positions that a token attends to where they are chosen for it


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope | None  # None: no positions
    projections: Projections = Projections()
    norm: NormKind = "rms"  # of the norm in front, and of those of heads
    head_norms: HeadNorms | None = None
    scores: Scores = Scores()
    gate: Gate | None = None
    sight: Sight = Sight()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads is {self.num_heads}, no multiple of num_key_value_heads, "
                f"{self.num_kv_heads}"
            )
        if self.head_dim % 2 and self.rope is not None:
            raise CheckpointError(f"config.json: head_dim is {self.head_dim}; positions rotate pairs of an even size")
        values, keys = self.projections.value_dim, self.projections.key_dim
        assert values is None or 0 < values < self.head_dim
        assert keys is None or (0 < keys < self.head_dim and self.scores.scale is not None)
        if self.head_dim > MAX_HEAD_DIM:
            raise CheckpointError(
                f"config.json: head_dim is {self.head_dim}, beyond the {MAX_HEAD_DIM} that moeinf computes"
            )
        if self.rope is not None and self.rope.rotary_dim > self.head_dim:
            raise CheckpointError(f"config.json: {self.rope.rotary_dim} rotary dimensions in heads of {self.head_dim}")

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.head_dim**-0.5 if self.scores.scale is None else self.scores.scale

    @property
    def window(self) -> int:
        """Tokens that a token attends to at most; 0: all before it."""
        return self.sight.window or 0

    def seeing(self, window: int | None) -> AttentionConfig:
        """The same with another window."""
        return replace(self, sight=replace(self.sight, window=window))

    def scored(self, **changes: Any) -> AttentionConfig:
        """The same with changed fields of Scores."""
        return replace(self, scores=replace(self.scores, **changes))


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """Where in a model a layer of attention stands."""

    layer: int  # the decoder layer; its state in the cache has the same number
    prefix: str  # of the layer's tensors
    norm: str | None  # name of the norm in front; None: the layer takes its input as it is
    residual: float = 1.0  # multiplies what the layer adds to the hidden states
    output_norm: str | None = None  # name of an RMS norm of what the layer adds
    replaces: bool = False  # what the layer would add takes the place of its input
    front_eps: float | None = None  # of the norm in front; None: that of all norms

    @property
    def front(self) -> str:
        """The name of the norm in front, for layers that have one in every family."""
        assert self.norm is not None, "this layer takes what a norm gives"
        return self.norm


@dataclass(frozen=True, slots=True)
class Growth:
    """Queries at position p are multiplied by scale ln(p + 1) + bias, of which each head has its own."""

    scale: str  # names of tensors, [heads]
    bias: str


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The heads of multi-head latent attention (mla.py)."""

    num_heads: int
    qk_nope_head_dim: int  # of a head's query and key, the part without positions
    rope: Rope  # of the part that is rotated
    scale: float  # of the scores
    sharpening: Sharpening | None = None  # of the queries
    sinks: str | None = None  # tensor with a further score of each head, whose weight goes nowhere
    growth: Growth | None = None
    source: int | None = None  # the layer whose rows are attended to; None: they are the layer's own
    window: int = 0  # a token sees itself and the window-1 tokens before it; 0: all


@dataclass(frozen=True, slots=True)
class IndexHeads:
    """The heads of an indexer (indexed.py)."""

    num_heads: int
    head_dim: int
    top_k: int  # positions that a token attends to; of pools, without those behind the last whole one
    interleaved: bool  # how the pairs lie that positions rotate
    at_end: bool = False  # whether these lie at the end of a head, and not at its beginning
    pool: int = 0  # tokens that have one key and are chosen together, where these are more than one
    growth: Growth | None = None

    @property
    def kept(self) -> int:
        """Numbers of a token that keys are made of."""
        return 2 * self.head_dim if self.pool else self.head_dim

    @property
    def most(self) -> int:
        """Positions that a token attends to at most."""
        return self.top_k + max(self.pool - 1, 0)


@dataclass(frozen=True, slots=True)
class CompressedHeads:
    """The heads of attention to a window of tokens and to entries that stand for several each (compressed.py)."""

    num_heads: int
    head_dim: int
    rope: Rope  # of the end of each query and row
    window: int  # tokens that a token sees, itself among them
    rate: int = 0  # tokens that an entry stands for; 0: there are none
    overlapping: bool = False  # an entry is made of the tokens before those, too
    index: IndexHeads | None = None  # by which entries are chosen; None: all are seen

    @property
    def scale(self) -> float:
        """Of the scores."""
        return 1 / math.sqrt(self.head_dim)

    @property
    def members(self) -> int:
        """Tokens that an entry is made of."""
        return 2 * self.rate if self.overlapping else self.rate

    @property
    def entry_dim(self) -> int:
        """Of an entry, and of its index key behind it."""
        return self.head_dim + (0 if self.index is None else self.index.head_dim)


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """The heads of an indexer that chooses blocks of tokens (block_sparse.py)."""

    num_heads: int
    head_dim: int
    block: int  # tokens
    num_blocks: int  # that a token attends to
    norm_eps: float

    @property
    def most(self) -> int:
        """Positions that a token attends to: those of its blocks, and those behind the last whole block."""
        return (self.num_blocks + 1) * self.block - 1

    def seeing_all(self, start: int, tokens: int) -> int:
        """How many of the tokens from position `start` have no more blocks than they may choose; they come first."""
        return min(max((self.num_blocks + 1) * self.block - 1 - start, 0), tokens)


@dataclass(frozen=True, slots=True)
class GroupIndex(BlockIndex):
    """The same where each key/value head has a choice of its own (group_sparse.py)."""

    local: int = 1  # of the blocks that a token attends to: its own one, and those in front of it

    @property
    def most(self) -> int:
        return self.num_blocks * self.block

    def seeing_all(self, start: int, tokens: int) -> int:
        return min(max(self.most - start, 0), tokens)


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of an encoder-decoder's attention, and what the family calls its projections."""

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


def narrow_heads(config: AttentionConfig, prefix: str) -> dict[str, int]:
    """The tensors whose heads have to be filled up to head_dim, and how many heads they have."""
    if config.projections.key_dim is None:
        return {}
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    kinds = ("weight", "bias") if config.projections.bias else ("weight",)
    return {f"{prefix}{name}.{kind}": count for name, count in heads.items() for kind in kinds}


def attention_shapes(config: AttentionConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Layers.attention takes."""
    heads, p, gate, norms = (config.num_heads, config.num_kv_heads), config.projections, config.gate, config.head_norms
    queries, keys = (count * config.head_dim for count in heads)
    if p.fused is None:
        rows = [count * (p.key_dim or config.head_dim) for count in heads]
        in_query = gate is not None and gate.name is None
        counts = {"q_proj": rows[0] * (2 if in_query else 1), "k_proj": rows[1]}
        if not p.values_of_keys:
            counts["v_proj"] = heads[1] * (p.value_dim or config.head_dim)
    else:
        counts = {p.fused: queries + 2 * keys}
    shapes: Shapes = {f"{prefix}{name}.weight": (count, config.hidden_size) for name, count in counts.items()}
    shapes[f"{prefix}{p.output}.weight"] = (config.hidden_size, heads[0] * (p.value_dim or config.head_dim))
    biased = [*(list(counts) if p.bias else []), *([p.output] if p.output_bias else [])]
    shapes |= {f"{prefix}{name}.bias": (shapes[f"{prefix}{name}.weight"][0],) for name in biased}
    if gate is not None and gate.name is not None:
        shapes[f"{prefix}{gate.name}.weight"] = (heads[0] if gate.per_head else queries, config.hidden_size)
    if gate is not None and gate.bias is not None:
        shapes[prefix + gate.bias] = (heads[0],)
    if config.scores.sinks is not None:
        shapes[prefix + config.scores.sinks] = (heads[0],)
    if norms is not None and norms.names is not None:
        for name, count in zip(norms.names, (queries, keys), strict=True):
            shapes[f"{prefix}{name}.weight"] = (count if norms.over == "full" else config.head_dim,)
    return shapes


def attention_workspace(config: AttentionConfig) -> Workspace:
    """What Layers.attention declares: on a GPU input, output, queries and their mixture, gates, keys and values."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    gate, value_dim = config.gate, config.projections.value_dim
    sizes = AttentionSizes(
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.window,
        gate is not None and gate.name is None,
        gate is not None and gate.name is not None,
        most_chosen=config.sight.most_chosen,
        value_dim=value_dim or 0,
    )
    attention = 2 * config.hidden_size + queries * (2 if gate is None else 4) + 2 * keys
    attention += 0 if value_dim is None else queries + keys
    return Workspace(attention=attention, layers=frozenset([sizes]))


def heads_workspace(config: AttentionConfig, others: int) -> Workspace:
    """What Layers.heads_core declares, and what a family makes of a token beside queries, keys and values: numbers."""
    sizes = attention_workspace(config)
    mixed = 2 * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return sizes | Workspace(token=mixed + others, fixed=SCORES_AT_ONCE)


def mlp_shapes(
    hidden: int, intermediate: int, prefix: str, names: tuple[str, str, str] = MLP_NAMES, *, biased: bool = False
) -> Shapes:
    """Names and shapes of the tensors of a gated MLP."""
    sizes = ((intermediate, hidden), (intermediate, hidden), (hidden, intermediate))
    shapes: Shapes = {f"{prefix}{name}.weight": size for name, size in zip(names, sizes, strict=True)}
    biases = {f"{prefix}{name}.bias": size[:1] for name, size in zip(names, sizes, strict=True)}
    return shapes | (biases if biased else {})
