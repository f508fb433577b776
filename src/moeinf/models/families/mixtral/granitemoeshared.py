"""Granite MoE with an MLP in each layer that every token is given besides its experts (GraniteMoeSharedForCausalLM)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moeinf.models.families.mixtral import granitemoe
from moeinf.models.families.mixtral.granitemoe import parse_granite
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Hidden, function_of
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.moe_block import in_parts
from moeinf.models.layers.protocol import Weights
from moeinf.models.widened import widened
from moeinf.types import Activation


class SharedMLP:
    """down(f(gate(x)) * up(x)) of a function f, of which one matrix has gate and then up."""

    def __init__(self, weights: Weights, prefix: str, intermediate_size: int, activation: Activation) -> None:
        self._activated, self._math = function_of(weights.math, activation), weights.math
        self._gate, self._up = weights.linears(f"{prefix}input_linear.weight", [intermediate_size] * 2)
        self._down = weights.linear(f"{prefix}output_linear.weight")

    def __call__(self, hidden: Hidden) -> Hidden:
        return in_parts(self._math, self._given, hidden)

    def _given(self, hidden: Hidden) -> Hidden:
        product = self._activated(self._gate(hidden))
        product *= self._up(hidden)
        return self._down(product)


@dataclass(frozen=True, slots=True)
class SharingMoe(Moe):
    """Granite's experts, beside an MLP of this size; 0: there is none."""

    mlp_size: int = 0

    @staticmethod
    def beside(moe: Moe, mlp_size: int) -> SharingMoe:
        return widened(SharingMoe, moe, mlp_size=mlp_size)

    @property
    def num_shared_experts(self) -> int:
        return 1 if self.mlp_size else 0

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden, size = Moe.shapes(self, decoder), decoder.attention.hidden_size, self.mlp_size
        for i in range(decoder.num_layers if size else 0):
            shapes[f"{_prefix(decoder, i)}input_linear.weight"] = (2 * size, hidden)
            shapes[f"{_prefix(decoder, i)}output_linear.weight"] = (hidden, size)
        return shapes

    def shared_mlp(
        self, weights: Weights, decoder: DecoderConfig, block: str, layer: int
    ) -> Callable[[Hidden], Hidden] | None:
        if not self.mlp_size:
            return None
        return SharedMLP(weights, _prefix(decoder, layer), self.mlp_size, decoder.activation)


def _prefix(decoder: DecoderConfig, layer: int) -> str:
    return f"{decoder.layer(layer)}shared_mlp."


class Family(DecoderFamily):
    name = "granitemoeshared"
    renamed = granitemoe.Family.renamed
    matrices = (".shared_mlp.input_linear.weight", ".shared_mlp.output_linear.weight")

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder, moe = parse_granite(f)
        return Spec(decoder, SharingMoe.beside(moe, f.count("shared_intermediate_size", minimum=0)))
