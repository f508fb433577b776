"""An end of vision towers that is a row of norms and matrices, between which the patches of a token are joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Final, Literal

from moeinf.models.layers.array_math import Array, ArrayMath, joined
from moeinf.models.layers.attention_config import NormConfig, Shapes, linear_shapes
from moeinf.models.layers.vision.tower_modules import norm_shapes, normed
from moeinf.models.layers.vision.vision import MLP_ROWS, Part
from moeinf.types import Activation


@dataclass(frozen=True, slots=True)
class Dense:
    """f(x w^T + bias)."""

    name: str
    rows: int
    biased: bool = True
    activation: Activation | None = None
    kernel: tuple[int, ...] = ()  # of a convolution of a token's patches, "number by number": rows and columns


# How the numbers of a token's patches lie behind one another; twice: what is there of a token, and the same again;
# gated: the first half of what is there, times silu of the second one.
Join = Literal["patch by patch", "number by number", "twice", "gated by the second half"]
_GATED: Final = "gated by the second half"


@dataclass(frozen=True, slots=True)
class Projector:
    """A Merger."""

    steps: tuple[NormConfig | Dense | Join, ...]

    def shapes(self, hidden: int, patches: int, out: int) -> Shapes:
        shapes, width = Shapes(), hidden
        for step in self.steps:
            if isinstance(step, NormConfig):
                shapes |= norm_shapes(step, width)
            elif isinstance(step, Dense):
                shapes |= linear_shapes(step.name, step.rows, width, biased=step.biased)
                if step.kernel:
                    shapes[f"{step.name}.weight"] = (step.rows, width // prod(step.kernel), *step.kernel)
                width = step.rows
            else:
                width = width // 2 if step == _GATED else width * (2 if step == "twice" else patches)
        assert width == out
        return shapes

    def tokens(self, part: Part, x: Array, patches: int) -> Array:
        functions, most = list[Callable[[Array], Array]](), max(1, MLP_ROWS // patches) * patches
        for step in self.steps:
            if isinstance(step, NormConfig):
                functions.append(normed(part, step))
            elif isinstance(step, Dense):
                weights, bias = part(f"{step.name}.").weights, f"{step.name}.bias" if step.biased else None
                math = weights.math
                functions.append(weights.linear(f"{step.name}.weight", bias, step.activation))
            elif step == "twice":
                functions.append(partial(_twice, math))
            elif step == _GATED:
                functions.append(partial(_gated, math))
            else:
                functions.append(_joining(step, patches))
        found = list[Array]()
        for start in range(0, len(x), most):  # a patch may have more numbers here than in the tower
            found.append(reduce(lambda piece, function: function(piece), functions, x[start : start + most]))
        return joined(math, found)


def _twice(math: ArrayMath, x: Array) -> Array:
    return math.concatenate([x, x], 1)


def _gated(math: ArrayMath, x: Array) -> Array:
    half = x.shape[1] // 2
    return x[:, :half] * math.silu(x[:, half:])


def _joining(how: Join, patches: int) -> Callable[[Array], Array]:
    if how == "patch by patch":
        return lambda x: x.reshape(-1, patches * x.shape[1])
    return lambda x: x.reshape(-1, patches, x.shape[1]).swapaxes(1, 2).reshape(-1, patches * x.shape[1])
