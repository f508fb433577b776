"""What a decoder family is built from: attention, gated MLP, softmax router, norms. Each device has its own layers.

Hidden states [tokens, hidden] are float32: numpy arrays on the CPU (models/cpu), torch tensors on a GPU
(models/gpu). Who builds a model with Layers never looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast, runtime_checkable

from moeinf.models.layers.array_math import A, Array, ArrayMathOf
from moeinf.models.layers.attention_config import (
    MLP_NAMES,
    AttentionConfig,
    AttentionSite,
    BlockIndex,
    CompressedHeads,
    GroupIndex,
    Heads,
    IndexHeads,
    LatentHeads,
    NormConfig,
)
from moeinf.models.layers.kv_cache import Cache, LayerState, Span
from moeinf.models.layers.recurrent.delta_config import DeltaConfig
from moeinf.models.layers.recurrent.mamba_config import MambaConfig
from moeinf.models.layers.rope import Rope
from moeinf.types import Activation, Float32Array, IntArray

# Each protocol is of a device's arrays A, positions P (as `rotary` gives them and `attention` takes them), routing R.
P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")  # the routing of a device: Routing, or its twin on a GPU
R_contra = TypeVar("R_contra", contravariant=True)
A_contra = TypeVar("A_contra", bound=Array, contravariant=True)


class ExpertsOf(Protocol[A_contra, R_contra]):
    """All that a model knows of its experts, wherever they are. A routing is of the library that computes, too."""

    def run(self, layer: int, hidden: A_contra, routing: R_contra, out: A_contra) -> None:
        """Adds the weighted sum of the routed experts' outputs to `out`."""
        ...

    @property
    def wants_expectations(self) -> bool:
        """Whether `expect` is worth calling, as a look-ahead predictor is in use."""
        ...

    def expect(self, layer: int, guess: R_contra) -> None:
        """Takes a guess at the routing of a later layer, made before the input of that layer is known."""
        ...


Experts = ExpertsOf[Array, object]  # of whatever device: a family passes routings on without looking into them


class AttentionOf(Protocol[A_contra, P_contra]):
    def new_state(self, capacity: int) -> LayerState:
        """What this layer keeps of a sequence, with room for so many tokens."""
        ...

    def add_rows(self, x: A_contra, spans: Sequence[Span[P_contra]]) -> None:
        """x += residual * attention(norm(x)); stores what it keeps of the tokens behind those seen.

        spans: of several sequences, or of one, which together are all rows of x, in order. A row does not depend on
        those of another sequence, nor on how many there are.
        """
        ...


class BlockOf(Protocol[A_contra]):
    """What follows attention: the experts, or a dense MLP."""

    def add_to(self, x: A_contra) -> None:
        """x += block(norm(x)), which a family may multiply by a number of its own."""
        ...


@runtime_checkable
class RoutedBlock(Protocol):
    """A block with experts."""

    @property
    def moe_layer(self) -> int: ...

    @property
    def router(self) -> RouterOf[Array, object]:
        """The choice of the experts by the hidden states that the block is given."""
        ...

    def add_to(self, x: Array) -> None: ...


class RouterOf(Protocol[A, R_co]):
    """A norm and a choice of experts; spelled out in the file of each family that has its own."""

    def __call__(self, x: A) -> tuple[A, R_co]:
        """x [tokens, hidden] -> norm(x), what the experts are given, and the Routing, best expert first."""
        ...


class LatentCoreOf(Protocol[A, P_contra]):
    """Causal attention of all heads to one row a token: a latent, and the rotated key that all heads share (mla.py)."""

    def new_state(self, capacity: int) -> LayerState: ...

    def store(self, rows: A, cache: Cache, positions: P_contra) -> None:
        """rows [tokens, rank + rotary_dim]: rotated at their ends, and stored behind those seen."""
        ...

    def at_once(self, tokens: int) -> int:
        """How many of the tokens of a pass to attend with in one call, for the memory that their queries take."""
        ...

    def attend(self, queries: A, cache: Cache, positions: P_contra, at: int) -> A:
        """queries [tokens, heads * (qk_nope_head_dim + rotary_dim)], not rotated yet -> [tokens, heads * value_dim].

        They are those of the tokens from `at` of the pass, whose rows have been stored."""
        ...


class IndexedCoreOf(LatentCoreOf[A, P_contra], Protocol[A, P_contra]):
    """The same, but that each token attends to a few positions which are chosen by index keys (indexed.py)."""

    def store_keys(self, keys: A, cache: Cache, positions: P_contra) -> None:
        """keys [tokens, head_dim]: rotated, and stored behind those seen; or what keys of pools are made of."""
        ...

    def choose(self, queries: A, weights: A, cache: Cache, positions: P_contra, at: int) -> object:
        """queries [tokens, num_heads * head_dim], not rotated yet; weights [tokens, num_heads].

        They are those of the tokens from `at` of the pass, whose keys have been stored. Gives what attend_to takes."""
        ...

    def attend_to(self, queries: A, chosen: object, cache: Cache, positions: P_contra, at: int) -> A:
        """As `attend`, to what `choose` has chosen for these tokens."""
        ...


class PoolsOf(Protocol[A]):
    def entries(self, raw: A, windows: A) -> Sequence[A]:
        """What entries are made of and the numbers of their windows (compressed.py) -> entries, and index keys."""
        ...


class CompressedCoreOf(Protocol[A, P_contra]):
    """Attention of all heads to the rows of a window and to entries, and what a layer keeps of both (compressed.py)."""

    def new_state(self, capacity: int) -> LayerState:
        """Of the last tokens."""
        ...

    def new_entries(self, capacity: int) -> LayerState: ...

    def store(self, rows: A, raw: A | None, cache: Cache, positions: P_contra) -> None:
        """rows [tokens, head_dim], not rotated yet; raw: what entries are made of, where there are any."""
        ...

    def choose(self, queries: A, weights: A, cache: Cache, positions: P_contra, at: int) -> object:
        """As IndexedCore.choose; what is chosen are entries."""
        ...

    def attend(self, queries: A, chosen: object, cache: Cache, positions: P_contra, at: int) -> A:
        """queries [tokens, heads, head_dim], not rotated yet -> the same of outputs, rotated back.

        They are those of the tokens from `at` of the pass, whose rows have been stored."""
        ...


class HeadsCoreOf(Protocol[A, P_contra]):
    """Causal attention of heads that a family makes itself."""

    def new_state(self, capacity: int) -> LayerState: ...

    def mixed(
        self, q: A, k: A, v: A, cache: Cache, positions: P_contra, *, relative: A | None = None, sinks: A | None = None
    ) -> A:
        """q [tokens, heads * head_dim], k, v [tokens, kv_heads * head_dim] of a pass -> [tokens, heads * head_dim].

        Queries and keys are not rotated or sharpened yet, and are used up. relative [tokens, heads * width]: a state of
        each query, which adds to its scores the products with the profile of how far back a position lies; sharpened as
        queries are. sinks [tokens, heads]: a further score, whose weight goes nowhere."""
        ...


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


class WeightsOf(Protocol[A, R_co]):
    """The dense weights of a model, by checkpoint name, and what is computed with a single one of them.

    Names were checked by the tensor plan: KeyError for others. A family that has layers of its own spells them out with
    these, once for all devices.
    """

    @property
    def math(self) -> ArrayMathOf[A]: ...

    def __contains__(self, name: str) -> bool: ...

    def vector(self, name: str) -> A:
        """A norm, a bias or another small tensor, in float32, flattened."""
        ...

    def linear(self, name: str, bias: str | None = None) -> Callable[[A], A]:
        """x [tokens, cols] -> x w^T + bias, [tokens, rows]."""
        ...

    def transposed(self, name: str) -> Callable[[A], A]:
        """x [tokens, rows] -> x w, [tokens, cols], of a matrix that is not quantised."""
        ...

    def linears(self, name: str, rows: Sequence[int]) -> Sequence[Callable[[A], A]]:
        """The same of the matrices that lie one behind the other in one tensor of any shape; rows: of each, all."""
        ...

    def norm(self, config: NormConfig | None) -> Callable[[A], A]:
        """None: what is given, as it is."""
        ...

    def routing(self, ids: A, weights: A) -> R_co:
        """Routing of what math.top_k chose; weights [tokens, top_k]."""
        ...


class LayersOf(Protocol[A, P, R_co]):
    """Whole layers that compute on one device, made of the weights that their names begin with."""

    @property
    def weights(self) -> WeightsOf[A, R_co]: ...

    def begin_pass(self, num_tokens: int) -> None:
        """What is computed from here on is part of a pass over so many tokens, in however many calls: on the CPU the
        number decides what is rounded and in which order sums are made, and not the size of a call."""
        ...

    def embedding(self, name: str) -> Callable[[Sequence[int]], A]:
        """Token ids to hidden states."""
        ...

    def lookup(self, name: str) -> Callable[[Sequence[int] | IntArray], Float32Array]:
        """Rows of a matrix, in host memory."""
        ...

    def upload(self, rows: Float32Array) -> A:
        """What was looked up, where it is computed with."""
        ...

    def rotary(self, rope: Rope | None, context_length: int) -> Callable[[int, int, Cache], P]:
        """(first token, tokens, the sequence's cache) to what `attention` takes."""
        ...

    def angles(self, cos: Float32Array, sin: Float32Array) -> P:
        """What `attention` takes for tokens that are turned by other angles: [tokens, rotary_dim / 2]."""
        ...

    def attention(self, config: AttentionConfig, site: AttentionSite) -> AttentionOf[A, P]:
        """Causal attention with grouped keys and values, and the norm in front of it, under Hugging Face names."""
        ...

    def latent_core(self, keys_values: str, heads: LatentHeads, layer: int) -> LatentCoreOf[A, P]:
        """keys_values [heads * (qk_nope_head_dim + value_dim), rank], not quantised: for each head W_UK, then W_UV.

        The last rotary_dim numbers of a row, and of each head's query, are rotated.
        """
        ...

    def indexed_core(
        self,
        keys_values: str,
        heads: LatentHeads,
        index: IndexHeads,
        layer: int,
        *,
        keeps_keys: bool,
        pooled: Callable[[A], A] | None = None,
    ) -> IndexedCoreOf[A, P]:
        """keeps_keys: whether the layer has index keys of its own, as one does that chooses. pooled: makes one key of
        those that are stored of a pool, [pools, tokens of one, kept] -> [pools, head_dim]."""
        ...

    def compressed_core(
        self, heads: CompressedHeads, sinks: A, pools: PoolsOf[A] | None, layer: int, number: int
    ) -> CompressedCoreOf[A, P]:
        """sinks [heads]: a further score of each head, whose weight goes nowhere; pools: where there are entries;
        number: of the state in the cache that keeps these."""
        ...

    def heads_core(self, config: AttentionConfig, layer: int, profiles: str | None = None) -> HeadsCoreOf[A, P]:
        """Of config the sizes, positions, window, sharpening and scale count. profiles [width, extent]: name of the
        tensor of what is added to scores by distance, from 0 on; nothing is from `extent` on."""
        ...

    def beams(self, heads: Heads, capacity: int, num_beams: int, bias: A | None) -> BeamsOf[A, P]:
        """With room for so many tokens of so many beams; bias [heads, capacity]: added to the scores of what a beam has
        decoded, by how many positions back that lies."""
        ...

    def delta_net(self, config: DeltaConfig, site: AttentionSite) -> AttentionOf[A, P]:
        """Gated DeltaNet, of the tensors that delta_shapes names, and the norm "rms+1" in front of it."""
        ...

    def mamba2(self, config: MambaConfig, site: AttentionSite) -> AttentionOf[A, P]:
        """Mamba-2, of the tensors that mamba_shapes names, and the norm "rms" in front of it."""
        ...

    def scan(self) -> Callable[[A, A, A, A, A, A], A]:
        """The recurrence of Mamba-2 (recurrent/mamba2.py): (q, k, v, decay, state, new_state) -> out.

        q, k, v and out [tokens, heads, dim]; decay (the logarithm of a) [tokens, heads]; fills new_state, which may be
        state [heads, dim, dim]."""
        ...

    def channel_delta(self) -> Callable[[A, A, A, A, A, A, A], A]:
        """The recurrence of KDA (recurrent/channel_delta.py): (q, k, v, decay, rate, state, new_state) -> out.

        q, k, v, out and decay (the logarithm of a) [tokens, heads, dim]; rate [tokens, heads]; fills new_state, which
        may be state [heads, dim, dim]."""
        ...

    def block_sparse(self, config: AttentionConfig, site: AttentionSite, index: BlockIndex) -> AttentionOf[A, P]:
        """Attention as of `attention`, to the blocks of tokens that an indexer chooses (block_sparse.py)."""
        ...

    def group_sparse(self, config: AttentionConfig, site: AttentionSite, index: GroupIndex) -> AttentionOf[A, P]:
        """The same where each key/value head has a choice of its own (group_sparse.py)."""
        ...

    def softmax_router(self, gate: str, norm: NormConfig | None, top_k: int, *, normalise: bool) -> RouterOf[A, R_co]:
        """Norm ("rms" or "rms+1"), then softmax over all experts, and of these the best k; `normalise` makes their
        weights sum to 1."""
        ...

    def gated_mlp(
        self, prefix: str, norm: NormConfig, names: tuple[str, str, str] = MLP_NAMES, activation: Activation = "silu"
    ) -> BlockOf[A]:
        """down(silu(gate(x)) * up(x)), under these names, and the norm in front of it; or what instead of silu."""
        ...

    def head(
        self, matrix: str, norm: NormConfig | None, scale: float = 1.0, bias: str | None = None
    ) -> Callable[[A], A]:
        """The norm at the end and the matrix that makes logits, which are multiplied by `scale`."""
        ...

    def carried(self, x: A) -> A:
        """x, on the device of these layers, which computes from here on; of a model whose layers are on several."""
        ...

    def run_or_replay(
        self, compute: Callable[[A, Sequence[Span[P]]], A], x: A, spans: Sequence[Span[P]]
    ) -> Float32Array:
        """compute(x, spans), the layers of one pass, as logits in host memory.

        The CPU calls `compute` every time. A GPU calls it for a prompt, and where there are several spans; of a decode
        step of one sequence it records the work that
        `compute` submits the first time, and replays that afterwards without calling it, but counts the tokens in the
        cache as Cache.commit does. What `compute` does on the host besides must not matter to a later step."""
        ...


# Of whatever device: what a family is written with. It passes positions and routings on without looking into them.
Positions = object
Attention = AttentionOf[Array, Positions]
Block = BlockOf[Array]
Router = RouterOf[Array, object]
LatentCore = LatentCoreOf[Array, Positions]
CompressedCore = CompressedCoreOf[Array, Positions]
IndexedCore = IndexedCoreOf[Array, Positions]
HeadsCore = HeadsCoreOf[Array, Positions]
Beams = BeamsOf[Array, Positions]
Weights = WeightsOf[Array, object]
Layers = LayersOf[Array, Positions, object]


def of_any_device(layers: LayersOf[A, P, R], experts: ExpertsOf[A, R]) -> tuple[Layers, Experts]:
    """The same objects, in the types that a family is written with.

    The signature checks that both are of one device; a family brings nothing of another device to them.
    """
    return cast("Layers", layers), cast("Experts", experts)
