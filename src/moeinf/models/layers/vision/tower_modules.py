"""Single modules of vision towers by their names: matrices and norms, of which each is asked for when it is needed."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.models.layers.array_math import Array, ArrayMath
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.vision.vision import Part
from moeinf.types import Activation


def linear(
    part: Part, name: str, *, biased: bool = True, activation: Activation | None = None
) -> Callable[[Array], Array]:
    return part(f"{name}.").weights.linear(f"{name}.weight", f"{name}.bias" if biased else None, activation)


def normed(part: Part, norm: NormConfig | None) -> Callable[[Array], Array]:
    if norm is None:
        return lambda x: x
    return part(norm.name.removesuffix("weight")).weights.norm(norm)


def norm_shapes(norm: NormConfig | None, size: int) -> Shapes:
    if norm is None:
        return {}
    kinds = ("weight", "bias") if norm.kind == "layer" else ("weight",)
    return {norm.name.removesuffix("weight") + kind: (size,) for kind in kinds}


def gated(math: ArrayMath, gate: Array, up: Array, limit: float) -> Array:
    """gate * up, of a gate that has gone through its function; with a limit silu(at most limit) * up, which lies within
    it, of one that has not."""
    if not limit:
        return gate * up
    return math.silu(math.clip(gate, -float("inf"), limit)) * math.clip(up, -limit, limit)
