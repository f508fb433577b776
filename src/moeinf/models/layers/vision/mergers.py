"""The ends of vision towers: what makes tokens of the patches of squares, as wide as the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention_config import NormConfig, Shapes, linear_shapes
from moeinf.models.layers.vision.tower_modules import gated, linear, norm_shapes, normed
from moeinf.models.layers.vision.vision import Part


class Merger(Protocol):
    """Asks for its tensors module by module, each once."""

    def shapes(self, hidden: int, patches: int, out: int) -> Shapes:
        """Names and shapes of its tensors. hidden: of a patch; patches: of a token; out: of a token's row."""
        ...

    def tokens(self, part: Part, x: Array, patches: int) -> Array:
        """x [patches, hidden], those of a token one behind the other -> [tokens, out]."""
        ...


@dataclass(frozen=True, slots=True)
class ConvolvedMerger:
    """A convolution that makes one of the patches of a token; then a norm, gelu and a gated MLP (GLM-4.1V)."""

    prefix: str  # of the tensors behind the convolution
    convolution: str
    size: int  # of the MLP
    before: NormConfig
    limit: float = 0.0  # of a TowerMlp

    def shapes(self, hidden: int, patches: int, out: int) -> Shapes:
        side = round(patches**0.5)
        shapes: Shapes = {f"{self.convolution}.weight": (out, hidden, side, side), f"{self.convolution}.bias": (out,)}
        shapes |= norm_shapes(self.before, hidden) | norm_shapes(self._behind, out)
        shapes |= linear_shapes(f"{self.prefix}proj", out, out, biased=False)
        for name in ("gate_proj", "up_proj"):
            shapes |= linear_shapes(self.prefix + name, self.size, out, biased=False)
        return shapes | linear_shapes(f"{self.prefix}down_proj", out, self.size, biased=False)

    @property
    def _behind(self) -> NormConfig:
        return NormConfig(f"{self.prefix}post_projection_norm.weight", 1e-5, "layer")

    def tokens(self, part: Part, x: Array, patches: int) -> Array:
        x = normed(part, self.before)(x)
        squares = x.reshape(-1, patches, x.shape[1]).swapaxes(1, 2).reshape(-1, x.shape[1] * patches)
        x = linear(part, f"{self.prefix}proj", biased=False)(linear(part, self.convolution)(squares))
        norm = part(f"{self.prefix}post_projection_norm.").weights
        x = norm.math.gelu(norm.norm(self._behind)(x))
        gate = linear(part, f"{self.prefix}gate_proj", biased=False, activation=None if self.limit else "silu")(x)
        inner = gated(norm.math, gate, linear(part, f"{self.prefix}up_proj", biased=False)(x), self.limit)
        return linear(part, f"{self.prefix}down_proj", biased=False)(inner)
