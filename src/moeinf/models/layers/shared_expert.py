"""Experts that every token uses: they lie with the dense weights, and never move."""

from __future__ import annotations

from moeinf.models.layers.protocol import Weights
from moeinf.types import Hidden


class SharedExpert:
    """down(silu(gate(x)) * up(x)), times sigmoid(w x) where it has a gate of its own."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        own_gate: str | None = None,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        """prefix: of gate, up and down, under `names`; own_gate: name of w [1, hidden]."""
        self._math = weights.math
        self._gate, self._up, self._down = (weights.linear(f"{prefix}{name}.weight") for name in names)
        self._own_gate = None if own_gate is None else weights.linear(own_gate)

    def __call__(self, hidden: Hidden) -> Hidden:
        """hidden [tokens, hidden] -> what the tokens are given."""
        out = self._down(self._math.silu(self._gate(hidden)) * self._up(hidden))
        return out if self._own_gate is None else out * self._math.sigmoid(self._own_gate(hidden))
