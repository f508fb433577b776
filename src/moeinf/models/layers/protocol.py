"""What a model is built from: weights by name, and parts that each device makes in its own way.

Hidden states [tokens, hidden] are float32: numpy arrays on the CPU (models/cpu), torch tensors on a GPU
(models/gpu). Who builds a model with Layers never looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from moeinf.models.layers.array_math import A, Array, ArrayMathOf, FusedOf
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.kv_cache import Cache, LayerState, SharedRows, Span
from moeinf.models.layers.rope import Rope
from moeinf.types import Activation, Float32Array, IntArray

# Each protocol is of a device's arrays A, positions P (as `rotary` gives them and `attention` takes them), routing R.
P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")  # the routing of a device: Routing, or its twin on a GPU
R_contra = TypeVar("R_contra", contravariant=True)
A_contra = TypeVar("A_contra", bound=Array, contravariant=True)
M = TypeVar("M")  # what a part is made into
D = TypeVar("D")  # what a device makes parts with
T = TypeVar("T", bound="Part[Any, Any, Any, Any]")


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

    def norm_outputs(self, layer: int, scale: A_contra, eps: float) -> None:
        """From now on divides the weight of each expert of a layer by the rms of its output: the root of the mean
        square of output * scale [H], plus eps. Called while a model is made."""
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


class WeightsOf(Protocol[A, R_co]):
    """The dense weights of a model, by checkpoint name, and what is computed with a single one of them.

    Names were checked by the tensor plan: KeyError for others. A family that has layers of its own spells them out with
    these, once for all devices.
    """

    @property
    def math(self) -> ArrayMathOf[A]: ...

    @property
    def fused(self) -> FusedOf[A]: ...

    def __contains__(self, name: str) -> bool: ...

    def vector(self, name: str) -> A:
        """A norm, a bias or another small tensor, in float32, flattened."""
        ...

    def linear(self, name: str, bias: str | None = None, activation: Activation | None = None) -> Callable[[A], A]:
        """x [tokens, cols] -> activation(x w^T + bias), [tokens, rows]; the activation is one without limits."""
        ...

    def adding(self, name: str) -> Callable[[A, A], None]:
        """(x [tokens, cols], out [tokens, rows]): out += x w^T."""
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

    @property
    def spares(self) -> int:
        """How many experts a router is to name behind those that it chooses; 0, unless answers may differ."""
        ...

    def routing(self, ids: A, weights: A, spares: tuple[A, A, bool] | None = None) -> R_co:
        """Routing of what math.top_k chose; weights [tokens, top_k]. spares: as moeinf.types.Spares."""
        ...


class HasWeights(Protocol[A]):
    """What a part is made with that is spelled out in the math of its weights."""

    @property
    def weights(self) -> WeightsOf[A, object]: ...


class Part(Generic[A, P, R, M]):
    """What each device computes in its own way: sizes, and names of tensors. `Layers.make` makes an M of it.

    A part is a frozen dataclass in the file of what it is a part of, and has a row in the table of each device
    (models/cpu/layers.py, models/gpu/layers.py). What is written with `Weights` alone needs none.
    """

    __slots__ = ()

    @classmethod
    def made_by(cls: type[T], make: Callable[[D, T], M]) -> Row[D]:
        """The row of a table that says what makes an M of such a part, given what device D is for it."""
        return Row(cls, make)


@dataclass(frozen=True, slots=True)
class Row(Generic[D]):
    part: type
    make: Callable[[D, Any], object]  # of this part alone, as Part.made_by has checked


class Table(Generic[D]):
    """What makes each part on one device."""

    def __init__(self, *rows: Row[D]) -> None:
        self.rows = {row.part: row.make for row in rows}

    def make(self, device: D, part: Part[A, P, R, M]) -> M:
        return cast(M, self.rows[type(part)](device, part))


class LayersOf(Protocol[A, P, R]):
    """What computes on one device, made of the dense weights that lie there."""

    @property
    def weights(self) -> WeightsOf[A, R]: ...

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

    def rows_of_sequence(self) -> AbstractContextManager[SharedRows | None]:
        """While entered, states are made for one sequence; what its rows share with others', where they can."""
        ...

    def angles(self, cos: Float32Array, sin: Float32Array) -> P:
        """What `attention` takes for tokens that are turned by other angles: [tokens, rotary_dim / 2]."""
        ...

    def make(self, part: Part[A, P, R, M]) -> M:
        """What computes the part on this device."""
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
Weights = WeightsOf[Array, object]
Layers = LayersOf[Array, Positions, object]


def of_any_device(layers: LayersOf[A, P, R], experts: ExpertsOf[A, R]) -> tuple[Layers, Experts]:
    """The same objects, in the types that a family is written with.

    The signature checks that both are of one device; a family brings nothing of another device to them.
    """
    return cast("Layers", layers), cast("Experts", experts)
