"""What layers of attention are told: their sizes and forms, and where they stand in a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.layers.rope import Rope
from moeinf.types import Float32Array

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
    groups: int = 1  # "rms": parts of the dimension, each of which has an rms of its own


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
    cap: float | None = None  # scores s become cap * tanh(s / cap)
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
    output_norm: str | None = None  # name of a norm of what the layer adds, of the kind of the one in front
    replaces: bool = False  # what the layer would add takes the place of its input
    front_eps: float | None = None  # of the norm in front; None: that of all norms

    @property
    def front(self) -> str:
        """The name of the norm in front, for layers that have one in every family."""
        assert self.norm is not None, "this layer takes what a norm gives"
        return self.norm


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


def linear_shapes(name: str, rows: int, cols: int, *, biased: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, cols)}
    return shapes | ({f"{name}.bias": (rows,)} if biased else {})


def mlp_shapes(
    hidden: int, intermediate: int, prefix: str, names: tuple[str, str, str] = MLP_NAMES, *, biased: bool = False
) -> Shapes:
    """Names and shapes of the tensors of a gated MLP."""
    sizes = ((intermediate, hidden), (intermediate, hidden), (hidden, intermediate))
    shapes = Shapes()
    for name, size in zip(names, sizes, strict=True):
        shapes |= linear_shapes(f"{prefix}{name}", *size, biased=biased)
    return shapes
