"""What layers of attention are told: their sizes and forms, where they stand in a model, and what they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeinf.errors import CheckpointError
from moeinf.models.layers.rope import Rope
from moeinf.types import AttentionSizes, Workspace

MAX_HEAD_DIM = 576  # what the native attention has room for

Shapes = dict[str, tuple[int, ...]]
MLP_NAMES = ("gate_proj", "up_proj", "down_proj")  # what most families call the matrices of a gated MLP
NormKind = Literal["rms", "rms+1", "layer"]


@dataclass(frozen=True, slots=True)
class NormConfig:
    """A norm over the last dimension.

    "rms": x / rms(x) * weight; "rms+1": the same, of a weight that is stored less one; "layer": (x - mean) / std *
    weight + bias, the bias under the weight's name.
    """

    name: str  # of its weight
    eps: float
    kind: NormKind = "rms"


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope | None  # None: no positions
    bias: bool = False  # of queries, keys and values
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full", "turned"] = "none"  # over each head, all together, each behind positions
    head_norms: tuple[str, str] = ("q_norm", "k_norm")  # what these norms are called
    fused_name: str | None = None  # of one matrix with the rows of queries, then of keys, then of values; no biases
    output_name: str = "o_proj"  # what the projection of all heads' outputs is called
    clip_qkv: float | None = None
    window: int | None = None  # a token sees itself and the window-1 tokens before it
    scale: float | None = None  # of the scores; None: head_dim^-0.5
    sinks: bool = False  # each head has a further score, tensor `sinks_name`, whose weight goes nowhere
    sinks_name: str = "sinks"
    gate: bool = False  # q_proj gives each head its query and then a gate, whose sigmoid multiplies the head's output
    gate_apart: bool = False  # tensor gate_proj makes such gates
    norm: NormKind = "rms"  # of the norm in front, and of those of heads

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise CheckpointError(
                f"config.json: {self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads "
                f"of an even size (head_dim {self.head_dim})"
            )
        if self.head_dim > MAX_HEAD_DIM:
            raise CheckpointError(
                f"config.json: heads of {self.head_dim} are beyond the {MAX_HEAD_DIM} that moeinf computes"
            )
        if self.rope is not None and self.rope.rotary_dim > self.head_dim:
            raise CheckpointError(f"config.json: {self.rope.rotary_dim} rotary dimensions in heads of {self.head_dim}")


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """Where in a model a layer of attention stands."""

    layer: int  # the decoder layer; its state in the cache has the same number
    prefix: str  # of the layer's tensors
    norm: str | None  # name of the norm in front; None: the layer takes its input as it is
    residual: float = 1.0  # multiplies what the layer adds to the hidden states
    output_norm: str | None = None  # name of an RMS norm of what the layer adds

    @property
    def front(self) -> str:
        """The name of the norm in front, for layers that have one in every family."""
        assert self.norm is not None, "this layer takes what a norm gives"
        return self.norm


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The heads of multi-head latent attention (mla.py)."""

    num_heads: int
    qk_nope_head_dim: int  # of a head's query and key, the part without positions
    rope: Rope  # of the part that is rotated
    scale: float  # of the scores


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


def attention_shapes(config: AttentionConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Layers.attention takes."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if config.fused_name is None:
        counts = {"q_proj": queries * (2 if config.gate else 1), "k_proj": keys, "v_proj": keys}
    else:
        counts = {config.fused_name: queries + 2 * keys}
    shapes: Shapes = {f"{prefix}{name}.weight": (count, config.hidden_size) for name, count in counts.items()}
    shapes[f"{prefix}{config.output_name}.weight"] = (config.hidden_size, queries)
    biased = [f"{n}_proj" for n in "qkv" if config.bias] + [config.output_name] * config.output_bias
    shapes |= {f"{prefix}{name}.bias": (shapes[f"{prefix}{name}.weight"][0],) for name in biased}
    if config.gate_apart:
        shapes[f"{prefix}gate_proj.weight"] = (queries, config.hidden_size)
    if config.sinks:
        shapes[prefix + config.sinks_name] = (config.num_heads,)
    if config.qk_norm != "none":
        whole = config.qk_norm == "full"
        for name, rows in zip(config.head_norms, (queries, keys), strict=True):
            shapes[f"{prefix}{name}.weight"] = (rows if whole else config.head_dim,)
    return shapes


def attention_workspace(config: AttentionConfig) -> Workspace:
    """What Layers.attention declares: on a GPU input, output, queries and their mixture, gates, keys and values."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = AttentionSizes(
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.window or 0,
        config.gate,
        config.gate_apart,
    )
    gated = config.gate or config.gate_apart
    attention = 2 * config.hidden_size + queries * (4 if gated else 2) + 2 * keys
    return Workspace(attention=attention, layers=frozenset([sizes]))


def mlp_shapes(hidden: int, intermediate: int, prefix: str, names: tuple[str, str, str] = MLP_NAMES) -> Shapes:
    """Names and shapes of the matrices of a gated MLP."""
    sizes = ((intermediate, hidden), (intermediate, hidden), (hidden, intermediate))
    return {f"{prefix}{name}.weight": size for name, size in zip(names, sizes, strict=True)}
