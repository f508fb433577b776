"""A network that was trained on a model's recorded routing, as it is kept, and as it decides for next-use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf._native import TunedUse
from moeinf.runtime.policy.tuned_archive import checked_weights, dumps, opened
from moeinf.types import Float32Array, JsonMapping, MoeShape

MOST_PARAMETERS: Final = 2_000_000
MOST_BYTES: Final = 4 * MOST_PARAMETERS + (1 << 20)  # of the file
MOST_WIDTH: Final = 128
_CONTEXTS: Final = 4  # as TunedUse has them: this token, the one before, two decayed means
_EVIDENCE: Final = 4  # rows of UseEvidence
LEAST_GAIN: Final = 0.2  # points, the mean over all sizes; random routing stays below


@dataclass(frozen=True, slots=True)
class Gain:
    """What the network was worth on requests that it was not trained on."""

    percents: tuple[int, ...]  # of the experts that were resident
    default: tuple[float, ...]  # hit rates of next-use, in percent, for each
    tuned: tuple[float, ...]
    requests: int
    tokens: int

    @property
    def points(self) -> tuple[float, ...]:
        return tuple(tuned - default for tuned, default in zip(self.tuned, self.default, strict=True))

    @property
    def better(self) -> bool:
        """Whether the network beats the default: at no size worse, and by enough to be no accident."""
        return min(self.points) >= 0 and sum(self.points) / len(self.points) >= LEAST_GAIN

    @property
    def text(self) -> str:
        points = " ".join(f"{point:+.1f}" for point in self.points)
        sizes = " ".join(str(percent) for percent in self.percents)
        return f"{points} points of hit rate at {sizes} % resident, on {self.requests} later requests"


@dataclass(frozen=True, slots=True)
class TunedNetwork:
    """The weights by name, as TunedUse takes them; of which model, and what they are worth."""

    model_id: str
    shape: MoeShape
    weights: Mapping[str, Float32Array]
    gain: Gain

    @property
    def num_parameters(self) -> int:
        return sum(array.size for array in self.weights.values())

    @property
    def num_bytes(self) -> int:
        """In memory, with what is learned beside it, but for what next-use keeps as well."""
        shape = self.shape
        tables = TunedUse.num_bytes(shape.num_layers, shape.num_experts, shape.top_k)
        return tables + 4 * self.num_parameters

    def use(self) -> TunedUse:
        """A model of its own, which has seen nothing yet."""
        shape = self.shape
        return TunedUse(shape.num_layers, shape.num_experts, shape.top_k, width_of(shape), **self.weights)

    def dumps(self) -> bytes:
        gain = self.gain
        facts = {
            "percents": gain.percents,
            "default": gain.default,
            "tuned": gain.tuned,
            "requests": gain.requests,
            "tokens": gain.tokens,
        }
        return dumps(self.model_id, self.shape, facts, self.weights)

    @classmethod
    def loads(cls, data: bytes, model_id: str, shape: MoeShape) -> TunedNetwork:
        """Raises StoreError for what is damaged, of another version, or of another model."""
        with opened(data, model_id, shape, MOST_BYTES) as (facts, arrays):
            return cls(model_id, shape, checked_weights(arrays, weight_shapes(shape)), _gain_of(facts))


def _gain_of(facts: JsonMapping) -> Gain:
    rates = tuple(facts["percents"]), tuple(facts["default"]), tuple(facts["tuned"])
    gain = Gain(*rates, facts["requests"], facts["tokens"])
    numbers = (*gain.percents, *gain.default, *gain.tuned, gain.requests, gain.tokens)
    if not gain.percents or len({len(each) for each in rates}) > 1 or not np.isfinite(numbers).all():
        raise ValueError("its gain is no list of numbers")
    return gain


def width_of(shape: MoeShape) -> int:
    """The widest network of a shape that has no more than MOST_PARAMETERS; at least 1, whatever it has then."""

    def parameters(width: int) -> int:
        return sum(int(np.prod(each)) for each in weight_shapes(shape, width).values())

    return max((width for width in range(1, MOST_WIDTH + 1) if parameters(width) <= MOST_PARAMETERS), default=1)


def weight_shapes(shape: MoeShape, width: int | None = None) -> dict[str, tuple[int, ...]]:
    """The shape of each array of weights; width: that of the network, by default width_of(shape)."""
    layers, experts, width = shape.num_layers, shape.num_experts, width_of(shape) if width is None else width
    return {
        "token": (layers, experts, width),
        "own": (layers, experts, width),
        "contexts": (_CONTEXTS, width, width),
        "bias": (layers, width),
        "hidden": (width, width),
        "head": (layers, width, 2 * experts),
        "head_bias": (layers, 2 * experts),
        "direct": (layers, _EVIDENCE, 2),
    }
