"""Granite MoE with an MLP in each layer that every token is given besides its experts (GraniteMoeSharedForCausalLM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from moeinf.models.families.mixtral import granitemoe
from moeinf.models.families.mixtral.granitemoe import Config
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Hidden, function_of
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.protocol import Weights
from moeinf.types import Activation, TensorPlan


def _parse(f: Fields) -> Config:
    return replace(Config.parse(f), shared_intermediate_size=f.count("shared_intermediate_size", minimum=0))


class SharedMLP:
    """down(f(gate(x)) * up(x)) of a function f, of which one matrix has gate and then up."""

    def __init__(self, weights: Weights, prefix: str, intermediate_size: int, activation: Activation) -> None:
        self._activated, self._size = function_of(weights.math, activation), intermediate_size
        self._both, self._down = (weights.linear(f"{prefix}{name}_linear.weight") for name in ("input", "output"))

    def __call__(self, hidden: Hidden) -> Hidden:
        both = self._both(hidden)
        return self._down(self._activated(both[:, : self._size]) * both[:, self._size :])


class Family(granitemoe.Family):
    name = "granitemoeshared"
    parse = staticmethod(_parse)

    @property
    def num_shared_experts(self) -> int:  # type: ignore[override]
        return 1 if self._config.shared_intermediate_size else 0

    def shared(self, weights: Weights, layer: int) -> Callable[[Hidden], Hidden] | None:
        size = self._config.shared_intermediate_size
        return SharedMLP(weights, _prefix(layer), size, self.decoder.activation) if size else None

    def block_shapes(self) -> Shapes:
        shapes, hidden = super().block_shapes(), self.decoder.attention.hidden_size
        size = self._config.shared_intermediate_size
        for i in range(self.decoder.num_layers if size else 0):
            shapes |= {
                f"{_prefix(i)}input_linear.weight": (2 * size, hidden),
                f"{_prefix(i)}output_linear.weight": (hidden, size),
            }
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = super().tensors
        return replace(plan, matrices=plan.matrices.union(name for name in plan.dense if ".shared_mlp." in name))


def _prefix(layer: int) -> str:
    return f"model.layers.{layer}.shared_mlp."
