"""Blocks beside attention: both are given the state in front of the layer, and both add to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.protocol import Attention, Experts, Positions, Router
from moeinf.types import Profiler


class SideBySide(Protocol):
    """A block that looks at the state before attention adds to it."""

    def look(self, x: Hidden) -> None: ...

    def attention(self, attention: Attention) -> Attention:
        """The attention of the same layer, in front of which the block looks at the state."""
        ...

    def add_to(self, x: Hidden) -> None: ...


class Looked:
    """The attention of a layer whose block looks at the state before."""

    def __init__(self, block: SideBySide, attention: Attention) -> None:
        self._block, self._attention = block, attention

    def new_state(self, capacity: int) -> LayerState:
        return self._attention.new_state(capacity)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        self._block.look(x)
        self._attention.add_to(x, cache, positions)


class Routed:
    """Experts of the state in front of the layer, and `share` of what shared ones make of the same."""

    def __init__(
        self,
        moe_layer: int,
        router: Router,
        experts: Experts,
        profiler: Profiler,
        shared: Callable[[Hidden], Hidden] | None,
        share: float = 1.0,
    ) -> None:
        self.moe_layer, self.router = moe_layer, router
        self._experts, self._profiler = experts, profiler
        self._shared, self._share = shared, share
        self._routed: tuple[Hidden, object] | None = None

    def attention(self, attention: Attention) -> Attention:
        return Looked(self, attention)

    def look(self, x: Hidden) -> None:
        self._routed = self.router(x)
        self._profiler.lap("router")

    def add_to(self, x: Hidden) -> None:
        assert self._routed is not None, "attention comes first"
        hidden, routing = self._routed
        self._experts.run(self.moe_layer, hidden, routing, x)
        if self._shared is not None:
            x += self._shared(hidden) * self._share


class Beside:
    """x += mlp(norm(x)), of the x in front of the layer."""

    def __init__(self, norm: Callable[[Hidden], Hidden], mlp: Callable[[Hidden], Hidden]) -> None:
        self._norm, self._mlp = norm, mlp
        self._hidden: Hidden | None = None

    def attention(self, attention: Attention) -> Attention:
        return Looked(self, attention)

    def look(self, x: Hidden) -> None:
        self._hidden = self._norm(x)

    def add_to(self, x: Hidden) -> None:
        assert self._hidden is not None, "attention comes first"
        x += self._mlp(self._hidden)
