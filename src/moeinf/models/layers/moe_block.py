"""The block of a layer with experts, the experts that every token uses, and blocks beside attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from moeinf.models.layers.array_math import ArrayMath, Hidden, function_of, joined
from moeinf.models.layers.attention_config import MLP_NAMES, NormConfig
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.protocol import Attention, Block, Experts, Positions, Router, Weights
from moeinf.types import Activation, Profiler

Joins = Callable[[Hidden, Hidden], None]  # puts what a block adds, the second, to its input


def joins_of(replaces: bool, joins: Joins | None) -> Joins | None:
    """None: the two are added."""

    def replace(x: Hidden, added: Hidden) -> None:
        x[...] = added

    return replace if replaces else joins


class MoeBlock:
    """Router, then the experts: the one call in which a model meets offloading.

    shared: what every token is given besides, of norm(x): shared experts, or a dense MLP beside the routed ones.
    beside: the same, of x itself.
    """

    def __init__(
        self,
        moe_layer: int,
        router: Router,
        experts: Experts,
        profiler: Profiler,
        *,
        shared: Callable[[Hidden], Hidden] | None = None,
        beside: Callable[[Hidden], Hidden] | None = None,
        residual: float = 1.0,
        behind_experts: Callable[[Hidden], Hidden] | None = None,
        behind: Callable[[Hidden], Hidden] | None = None,
        latent: tuple[Callable[[Hidden], Hidden], Callable[[Hidden], Hidden]] | None = None,
        replaces: bool = False,
        joins: Joins | None = None,
    ) -> None:
        """behind_experts: a norm of what the routed experts add; behind: one of what the block adds. latent: into the
        narrower space that the experts compute in, and back out of it. replaces: what the block would add takes the
        place of its input. joins: what puts it there."""
        self.moe_layer = moe_layer
        self.router = router
        self._experts = experts
        self._profiler = profiler
        self._shared, self._beside = shared, beside
        self._residual = residual
        self._behind_experts, self._behind = behind_experts, behind
        self._latent, self._joins = latent, joins_of(replaces, joins)

    def add_to(self, x: Hidden) -> None:
        hidden, routing = self.router(x)
        self._profiler.lap("router")
        others = (self._beside, self._behind_experts, self._behind)
        at_once = self._residual == 1.0 and self._joins is None and all(each is None for each in others)
        out = x if at_once else x * 0
        self._run(hidden, routing, out)
        if self._behind_experts is not None:
            out = self._behind_experts(out)
        if self._shared is not None:
            out += self._shared(hidden)
        if self._beside is not None:
            out += self._beside(x)
        if not at_once:
            added = (out if self._behind is None else self._behind(out)) * self._residual
            if self._joins is None:
                x += added
            else:
                self._joins(x, added)

    def _run(self, hidden: Hidden, routing: object, out: Hidden) -> None:
        if self._latent is None:
            self._experts.run(self.moe_layer, hidden, routing, out)
            return
        narrow, widen = self._latent
        given = narrow(hidden)
        found = given * 0
        self._experts.run(self.moe_layer, given, routing, found)
        out += widen(found)


_TOGETHER = 1024  # tokens that go through an MLP: memory of what is between its matrices is used again


def in_parts(math: ArrayMath, mlp: Callable[[Hidden], Hidden], hidden: Hidden) -> Hidden:
    """What an MLP makes of tokens [tokens, hidden], some of them after the other."""
    starts = range(0, max(1, len(hidden)), _TOGETHER)
    return joined(math, [mlp(hidden[start : start + _TOGETHER]) for start in starts])


class GatedMLP:
    """x += down(f(gate(norm(x))) * up(norm(x))): the dense block."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        norm: NormConfig,
        names: tuple[str, str, str] = MLP_NAMES,
        activation: Activation = "silu",
    ) -> None:
        """prefix: of gate, up and down, under `names`; activation: f."""
        gate, up, down = (f"{prefix}{name}.weight" for name in names)
        self._activated_gate = weights.linear(gate, activation=activation)
        self._up, self._add_down, self._norm = weights.linear(up), weights.adding(down), weights.norm(norm)

    def add_to(self, x: Hidden) -> None:
        for start in range(0, len(x), _TOGETHER):
            some = x[start : start + _TOGETHER]
            hidden = self._norm(some)
            product = self._activated_gate(hidden)
            product *= self._up(hidden)
            self._add_down(product, some)


class SharedExpert:
    """down(silu(gate(x)) * up(x)), times sigmoid(w x) where it has a gate of its own.

    With `oai` it is down((up(x) + 1) * gate(x) * sigmoid(1.702 gate(x))), which is gpt-oss's, and with `caps` that of
    softcapped experts (ExpertForm).
    With a limit, gate(x) is at most that, or with clamps_silu silu(gate(x)), and up(x) between it and its negative. Its
    weights lie with the dense ones, and never move.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        own_gate: str | None = None,
        names: tuple[str, str, str] = MLP_NAMES,
        limit: float = 0.0,
        clamps_silu: bool = False,
        oai: bool = False,
        activation: Activation = "silu",
        biased: bool = False,
        caps: tuple[float, float] | None = None,
    ) -> None:
        """prefix: of gate, up and down, under `names`; own_gate: name of w [1, hidden]; activation: instead of silu;
        biased: whether each matrix has a bias."""
        self._activated = function_of(weights.math, activation)
        self._math, self._limit, self._clamps_silu, self._oai = weights.math, limit, clamps_silu, oai
        self._caps, self._plain = caps, not limit and not oai and caps is None
        functions = (activation if self._plain else None, None, None)
        self._gate, self._up, self._down = (
            weights.linear(f"{prefix}{name}.weight", f"{prefix}{name}.bias" if biased else None, function)
            for name, function in zip(names, functions, strict=True)
        )
        self._own_gate = None if own_gate is None else weights.linear(own_gate)

    def __call__(self, hidden: Hidden) -> Hidden:
        """hidden [tokens, hidden] -> what the tokens are given."""
        return in_parts(self._math, self._given, hidden)

    def _given(self, hidden: Hidden) -> Hidden:
        out = self._down(self._product(self._gate(hidden), self._up(hidden)))
        return out if self._own_gate is None else out * self._math.sigmoid(self._own_gate(hidden))

    def _product(self, gate: Hidden, up: Hidden) -> Hidden:
        """What down is given. gate: activated already where nothing is limited."""
        limit, math = self._limit, self._math
        if self._plain:
            gate *= up
            return gate
        if self._caps is not None:
            of_gate, of_up = self._caps
            gate = math.tanh(gate * (1 / of_gate)) * of_gate * math.sigmoid(gate)
            return gate * (math.tanh(up * (1 / of_up)) * of_up if of_up else up)
        if limit:
            up = math.clip(up, -limit, limit)
        if limit and not self._clamps_silu:
            gate = math.clip(gate, -float("inf"), limit)
        gate = gate * math.sigmoid(gate * 1.702) if self._oai else self._activated(gate)
        if self._clamps_silu:
            gate = math.clip(gate, -float("inf"), limit)
        return gate * (up + 1 if self._oai else up)


class DenseBlock:
    """x += behind(mlp(norm(x))); or, where it replaces its input, x = that."""

    def __init__(
        self,
        norm: Callable[[Hidden], Hidden],
        mlp: Callable[[Hidden], Hidden],
        behind: Callable[[Hidden], Hidden],
        *,
        replaces: bool = False,
        joins: Joins | None = None,
    ) -> None:
        self._norm, self._mlp, self._behind, self._joins = norm, mlp, behind, joins_of(replaces, joins)

    def add_to(self, x: Hidden) -> None:
        out = self._behind(self._mlp(self._norm(x)))
        if self._joins is None:
            x += out
        else:
            self._joins(x, out)


class UngatedMLP:
    """down(f(up(x))), of a function f."""

    def __init__(self, weights: Weights, prefix: str, activation: Activation, *, biased: bool = False) -> None:
        up, down = (f"{prefix}{name}_proj" for name in ("up", "down"))
        self._activated = weights.linear(f"{up}.weight", f"{up}.bias" if biased else None, activation)
        self._down = weights.linear(f"{down}.weight", f"{down}.bias" if biased else None)
        self._math = weights.math

    def __call__(self, hidden: Hidden) -> Hidden:
        return in_parts(self._math, lambda some: self._down(self._activated(some)), hidden)


class PlainBlock:
    """x += mlp(norm(x))."""

    def __init__(self, norm: Callable[[Hidden], Hidden], mlp: Callable[[Hidden], Hidden]) -> None:
        self._norm, self._mlp = norm, mlp

    def add_to(self, x: Hidden) -> None:
        x += self._mlp(self._norm(x))


@runtime_checkable
class SideBySide(Block, Protocol):
    """A block beside attention: it looks at the state before attention adds to it."""

    def look(self, x: Hidden) -> None: ...


class Looked:
    """The attention of a layer whose block looks at the state before."""

    def __init__(self, block: SideBySide, attention: Attention) -> None:
        self._block, self._attention = block, attention

    def new_state(self, capacity: int) -> LayerState:
        return self._attention.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        self._block.look(x)
        self._attention.add_rows(x, spans)


class Routed:
    """Experts that are chosen by the state in front of the layer, and `share` of what shared ones make of it.

    norm: of the state behind attention, where experts are given that; None: they are given what the router makes.
    """

    def __init__(
        self,
        moe_layer: int,
        router: Router,
        experts: Experts,
        profiler: Profiler,
        shared: Callable[[Hidden], Hidden] | None = None,
        share: float = 1.0,
        norm: Callable[[Hidden], Hidden] | None = None,
    ) -> None:
        self.moe_layer, self.router = moe_layer, router
        self._experts, self._profiler = experts, profiler
        self._shared, self._share, self._norm = shared, share, norm
        self._routed: tuple[Hidden, object] | None = None

    def look(self, x: Hidden) -> None:
        self._routed = self.router(x)
        self._profiler.lap("router")

    def add_to(self, x: Hidden) -> None:
        assert self._routed is not None, "attention comes first"
        hidden, routing = self._routed
        self._experts.run(self.moe_layer, hidden if self._norm is None else self._norm(x), routing, x)
        if self._shared is not None:
            x += self._shared(hidden) * self._share


class Beside:
    """x += mlp(norm(x)), of the x in front of the layer."""

    def __init__(self, norm: Callable[[Hidden], Hidden], mlp: Callable[[Hidden], Hidden]) -> None:
        self._norm, self._mlp = norm, mlp
        self._hidden: Hidden | None = None

    def look(self, x: Hidden) -> None:
        self._hidden = self._norm(x)

    def add_to(self, x: Hidden) -> None:
        assert self._hidden is not None, "attention comes first"
        x += self._mlp(self._hidden)
