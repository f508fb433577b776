"""What a decoder family is built from: attention, gated MLP, softmax router, norms. Each device has its own layers.

Hidden states [tokens, hidden] are float32: numpy arrays on the CPU (models/cpu), torch tensors on a GPU
(models/gpu). Who builds a model with Layers never looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from moeinf.errors import CheckpointError
from moeinf.models.layers.array_math import ArrayMath
from moeinf.models.layers.delta_config import DeltaConfig
from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.rope import Rope
from moeinf.types import Float32Array, Hidden, Work

MAX_HEAD_DIM = 576  # what the native attention has room for
QUERIES_AT_ONCE = 128  # whose scores a thread holds (kernels/attend_many.cc)
RUNS_AT_ONCE = 8 * 16  # of the positions that up to 8 tokens attend to one by one (kernels/attend_few.cc, runs.h)

Shapes = dict[str, tuple[int, ...]]
NormKind = Literal["rms", "rms+1", "layer"]
Places = Any  # of the tokens of one pass, as Layers.rotary gives them and Layers.attention takes them


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
    qk_norm: Literal["none", "head", "full"] = "none"  # over each head, or over all heads together
    clip_qkv: float | None = None
    window: int | None = None  # a token sees itself and the window-1 tokens before it
    scale: float | None = None  # of the scores; None: head_dim^-0.5
    sinks: bool = False  # each head has a further score, tensor `sinks`, whose weight goes nowhere
    gate: bool = False  # q_proj gives each head its query and then a gate, whose sigmoid multiplies the head's output
    norm: NormKind = "rms"  # in front of it, and of each head

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


class Attention(Protocol):
    def new_state(self, capacity: int) -> LayerState:
        """What this layer keeps of a sequence, with room for so many tokens."""
        ...

    def add_to(self, x: Hidden, cache: Cache, places: Places) -> None:
        """x += residual * attention(norm(x)); stores what it keeps of the tokens behind those seen."""
        ...


class Block(Protocol):
    """What follows attention: the experts, or a dense MLP."""

    def add_to(self, x: Hidden) -> None:
        """x += residual * block(norm(x))."""
        ...


class Router(Protocol):
    """A norm and a choice of experts; spelled out in the file of each family that has its own."""

    def __call__(self, x: Hidden) -> tuple[Hidden, Any]:
        """x [tokens, hidden] -> norm(x), what the experts are given, and the Routing, best expert first."""
        ...


class LatentCore(Protocol):
    """Causal attention of all heads to one row a token: a latent, and the turned key that all heads share (mla.py)."""

    def new_state(self, capacity: int) -> LayerState: ...

    def store(self, rows: Hidden, cache: Cache, places: Places) -> None:
        """rows [tokens, rank + rotary_dim]: turned at their ends, and stored behind those seen."""
        ...

    def at_once(self, tokens: int) -> int:
        """How many of the tokens of a pass to attend with in one call, for the memory that their queries take."""
        ...

    def attend(self, queries: Hidden, cache: Cache, places: Places, at: int) -> Hidden:
        """queries [tokens, heads * (plain_dim + rotary_dim)], not turned yet, of the tokens from `at` of the pass,
        whose rows have been stored -> [tokens, heads * value_dim]."""
        ...


class Beams(LayerState, Protocol):
    """Keys and values of one decoder layer, float32: of the source, one for all beams, and of what each has decoded.

    q, k, v [beams * tokens, heads * head_dim]: one token of each of cache.beams, or several tokens of a single beam.
    """

    def read_source(self, keys: Hidden, values: Hidden) -> None:
        """keys, values [tokens, heads * head_dim] of a new source."""
        ...

    def keep(self, beams: Any, length: int) -> None:
        """The numbered beams (an int64 array of the library that computes) go on, each as often as it is named, with
        their first `length` tokens."""
        ...

    def over_source(self, q: Hidden) -> Hidden:
        """Whatever beam a row belongs to, it sees all of the source."""
        ...

    def over_past(self, q: Hidden, k: Hidden, v: Hidden, cache: Cache, places: Places) -> Hidden:
        """Stores k and v behind cache.length; each token sees its own beam up to itself."""
        ...


class Weights(Protocol):
    """The dense weights of a model, by checkpoint name, and what is computed with a single one of them.

    Names were checked by the tensor plan: KeyError for others. A family that has layers of its own spells them out with
    these, once for all devices.
    """

    @property
    def math(self) -> ArrayMath: ...

    def __contains__(self, name: str) -> bool: ...

    def vector(self, name: str) -> Hidden:
        """A norm, a bias or another small tensor, in float32, flattened."""
        ...

    def linear(self, name: str, bias: str | None = None) -> Callable[[Hidden], Hidden]:
        """x [tokens, cols] -> x w^T + bias, [tokens, rows]."""
        ...

    def norm(self, name: str, eps: float, kind: NormKind = "rms") -> Callable[[Hidden], Hidden]:
        """Over the last dimension. "rms": x / rms(x) * weight; "rms+1": the weight stored is one less; "layer":
        (x - mean) / std * weight + bias, the bias under the weight's name."""
        ...

    def routing(self, ids: Hidden, weights: Hidden) -> Any:
        """Routing of what math.top_k chose; weights [tokens, top_k]."""
        ...


class Layers(Protocol):
    """Whole layers that compute on one device, made of the weights that their names begin with."""

    @property
    def weights(self) -> Weights: ...

    def begin_pass(self, num_tokens: int) -> None:
        """What is computed from here on is part of a pass over so many tokens, in however many calls: on the CPU the
        number decides what is rounded and in which order sums are made, and not the size of a call."""
        ...

    def embedding(self, name: str) -> Callable[[Sequence[int]], Hidden]:
        """Token ids to hidden states."""
        ...

    def rotary(self, rope: Rope | None, context_length: int) -> Callable[[int, int, int], Places]:
        """(first place, tokens, what the sequence has room for) to what `attention` takes."""
        ...

    def attention(
        self, config: AttentionConfig, prefix: str, norm: str, layer: int, residual: float = 1.0
    ) -> Attention:
        """Causal attention with grouped keys and values, and the norm in front of it, under Hugging Face names."""
        ...

    def latent_core(
        self, keys_values: str, num_heads: int, plain_dim: int, rope: Rope, scale: float, layer: int
    ) -> LatentCore:
        """keys_values [heads * (plain_dim + value_dim), rank], not quantised: for each head W_UK, then W_UV.

        Of a row and of a head's query the last rotary_dim are turned; scale: of the scores.
        """
        ...

    def beams(
        self, num_heads: int, head_dim: int, scale: float, capacity: int, num_beams: int, bias: Hidden | None
    ) -> Beams:
        """With room for so many tokens of so many beams; bias [heads, capacity]: added to the scores of what a beam has
        decoded, by how many places back that lies."""
        ...

    def delta_net(self, config: DeltaConfig, prefix: str, norm: str, layer: int) -> Attention:
        """Gated DeltaNet; prefix: of the tensors that delta_shapes names; norm: the one in front, "rms+1"."""
        ...

    def softmax_router(
        self, gate: str, norm: str, eps: float, top_k: int, normalise: bool, kind: NormKind = "rms"
    ) -> Router:
        """Norm ("rms" or "rms+1"), then softmax over all experts, and of these the best k; `normalise` makes their
        weights sum to 1."""
        ...

    def gated_mlp(self, prefix: str, norm: str, eps: float, residual: float = 1.0, kind: NormKind = "rms") -> Block:
        """down(silu(gate(x)) * up(x)), and the norm in front of it."""
        ...

    def head(
        self, matrix: str, norm: str, eps: float, kind: NormKind = "rms", scale: float = 1.0, bias: str | None = None
    ) -> Callable[[Hidden], Hidden]:
        """The norm at the end and the matrix that makes logits, which are multiplied by `scale`."""
        ...

    def carry_out(
        self, compute: Callable[[Hidden, Places], Hidden], x: Hidden, places: Places, cache: Any
    ) -> Float32Array:
        """Logits, in host memory, of one pass over a cache; a device may keep a token's steps and repeat them."""
        ...


def attention_shapes(config: AttentionConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Layers.attention takes."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {
        f"{prefix}q_proj.weight": (queries * (2 if config.gate else 1), config.hidden_size),
        f"{prefix}k_proj.weight": (keys, config.hidden_size),
        f"{prefix}v_proj.weight": (keys, config.hidden_size),
        f"{prefix}o_proj.weight": (config.hidden_size, queries),
    }
    biased = ("qkv" if config.bias else "") + ("o" if config.output_bias else "")
    shapes |= {f"{prefix}{n}_proj.bias": (shapes[f"{prefix}{n}_proj.weight"][0],) for n in biased}
    if config.sinks:
        shapes[f"{prefix}sinks"] = (config.num_heads,)
    if config.qk_norm != "none":
        whole = config.qk_norm == "full"
        shapes[f"{prefix}q_norm.weight"] = (queries if whole else config.head_dim,)
        shapes[f"{prefix}k_norm.weight"] = (keys if whole else config.head_dim,)
    return shapes


def attention_work(config: AttentionConfig) -> Work:
    """What Layers.attention declares: input, output, queries and their mixture, gates, keys and values; and what the
    runs of positions come to that a few tokens attend to."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    group = config.num_heads // config.num_kv_heads
    return Work(
        attention=2 * config.hidden_size + queries * (4 if config.gate else 2) + 2 * keys,
        values=keys,
        scores=max(QUERIES_AT_ONCE, group),
        fixed=RUNS_AT_ONCE * (queries + 2 * config.num_heads),
    )


def block_work(shapes: Shapes) -> Work:
    """Of the matrices outside of attention, which have its name: what each makes of a token, and is made of that."""
    rows = dict[str, int]()
    for name, shape in shapes.items():
        module = name.rsplit(".", 2)[0]
        if len(shape) == 2 and "att" not in module.lower() and module.count(".") > 1:  # else the embedding, or the head
            rows[module] = rows.get(module, 0) + shape[0]
    return Work(token=3 * max(rows.values(), default=0))


def mlp_shapes(hidden: int, intermediate: int, prefix: str) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (intermediate, hidden),
        f"{prefix}up_proj.weight": (intermediate, hidden),
        f"{prefix}down_proj.weight": (hidden, intermediate),
    }
