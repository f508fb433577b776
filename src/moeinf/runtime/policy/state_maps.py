"""Prediction by linear maps, trained on the model, from the hidden state before attention to the routing to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from moeinf.runtime.policy.tuned_archive import TunedArchive, checked_weights
from moeinf.types import Float32Array, FloatArray, IntArray, MoeShape, Phase

NAME: Final = "tuned"
REACH: Final = 3  # layers that a state tells of: its own, and the next two
MOST_PARAMETERS: Final = 2_000_000
MOST_BYTES: Final = 4 * MOST_PARAMETERS + (1 << 20)  # of the file
LEAST_GAIN: Final = 0.01  # of the time of a token, the mean over all machines
_ARCHIVE: Final = TunedArchive("moeinf state maps", 1, "tuned predictor", MOST_BYTES)


def unit_state(x: Float32Array) -> Float32Array:
    """x [tokens, hidden], each row divided by its root mean square; what is 0 stays so.

    So float16 holds it, and a map need not know how states grow from layer to layer, as routers do not, either.
    """
    squares = np.einsum("th,th->t", x, x) / np.float32(x.shape[1])
    unit: Float32Array = x / np.sqrt(squares + np.float32(1e-20))[:, None]
    return unit


@dataclass(frozen=True, slots=True)
class TimeGain:
    """What the maps were worth: simulated on requests that they were not trained on, and where the model really ran."""

    computes: tuple[float, ...]  # what a layer computes, in times of the read of an expert: the machines
    default: tuple[float, ...]  # time of a token with look-ahead, in reads, for each
    tuned: tuple[float, ...]  # with the predictor
    predictor: str  # the best that has the maps: alone, or joined with look-ahead
    requests: int
    tokens: int
    live_ms: tuple[float, ...] = ()  # of a token on the machine at hand: with look-ahead, with the predictor

    @property
    def simulated_better(self) -> bool:
        """Whether it is slower on no simulated machine, and faster by enough to be no accident."""
        return max(self.changes) <= 0 and -sum(self.changes) / len(self.changes) >= LEAST_GAIN

    @property
    def changes(self) -> tuple[float, ...]:
        """Of the time of a token; below 0: less."""
        return tuple(tuned / default - 1 for tuned, default in zip(self.tuned, self.default, strict=True))

    @property
    def better(self) -> bool:
        """Whether it beats the default: simulated, and not slower with what it costs itself where it really ran."""
        return self.simulated_better and len(self.live_ms) == 2 and self.live_ms[1] <= self.live_ms[0]

    @property
    def text(self) -> str:
        changes = " ".join(f"{100 * change:+.1f}" for change in self.changes)
        computes = " ".join(f"{compute:g}" for compute in self.computes)
        live = "; on this machine {:.2f} ms a token became {:.2f}".format(*self.live_ms) if self.live_ms else ""
        return (
            f"{self.predictor}: {changes} % of the time of a token where a layer computes as long as {computes} reads "
            f"take, on {self.requests} later requests, simulated{live}"
        )


@dataclass(frozen=True, slots=True)
class StateMaps:
    """The weights by name, float32 (see map_shapes); of which model, and what they are worth."""

    model_id: str
    shape: MoeShape
    weights: Mapping[str, Float32Array]
    gain: TimeGain

    @property
    def num_parameters(self) -> int:
        return sum(array.size for array in self.weights.values())

    @property
    def num_bytes(self) -> int:
        """In memory."""
        return 4 * self.num_parameters

    def dumps(self) -> bytes:
        gain = self.gain
        facts = {
            "computes": gain.computes,
            "default": gain.default,
            "tuned": gain.tuned,
            "predictor": gain.predictor,
            "requests": gain.requests,
            "tokens": gain.tokens,
            "live_ms": gain.live_ms,
        }
        return _ARCHIVE.dumps(self.model_id, self.shape, facts, self.weights)

    @classmethod
    def loads(cls, data: bytes, model_id: str, shape: MoeShape, hidden_size: int) -> StateMaps:
        """Raises StoreError for what is damaged, of another version, or of another model."""
        with _ARCHIVE.opened(data, model_id, shape) as (facts, arrays):
            return cls(model_id, shape, checked_weights(arrays, map_shapes(shape, hidden_size)), _gain_of(facts))


def _gain_of(facts: Mapping[str, Any]) -> TimeGain:
    times = tuple(facts["computes"]), tuple(facts["default"]), tuple(facts["tuned"])
    gain = TimeGain(*times, facts["predictor"], facts["requests"], facts["tokens"], tuple(facts["live_ms"]))
    numbers = (*gain.computes, *gain.default, *gain.tuned, gain.requests, gain.tokens, *gain.live_ms)
    if not gain.computes or len({len(each) for each in times}) > 1 or not np.isfinite(numbers).all():
        raise ValueError("its gain is no list of numbers")
    if min(gain.default) <= 0 or len(gain.live_ms) not in (0, 2) or NAME not in gain.predictor.split("+"):
        raise ValueError("its gain is of another predictor")
    return gain


def map_shapes(shape: MoeShape, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """The shape of each array of weights. The rank is the highest of no more than MOST_PARAMETERS; at least 1."""
    layers, out = shape.num_layers, REACH * shape.num_experts
    rank = (MOST_PARAMETERS // layers - out) // (hidden_size + out)
    rank = max(1, min(rank, hidden_size, out))
    return {"reduce": (layers, hidden_size, rank), "expand": (layers, rank, out), "bias": (layers, out)}


class MapPredictor:
    """What the state before a layer's attention says of that layer and the next two.

    P = 1 / (1 + exp(-(bias[l] + x reduce[l] expand[l]))), x the state with a mean square of 1; of several tokens the
    mean. The rows of layers that there are not mean nothing.
    """

    name: Final = NAME

    def __init__(self, maps: StateMaps) -> None:
        self._num_layers, self._reach = maps.shape.num_layers, (REACH, maps.shape.num_experts)
        self._reduce, self._expand, self._bias = (maps.weights[name] for name in ("reduce", "expand", "bias"))
        self._layer = -1
        self._likelihood: FloatArray = np.zeros(self._reach)

    def begin(self, phase: Phase) -> None:
        self._layer = -1

    def observe(self, layer: int, ids: IntArray) -> None:
        pass

    def restart(self) -> None:
        pass

    def see(self, layer: int, state: Float32Array) -> None:
        """Takes the state before the attention of a layer, [tokens, hidden], as unit_state makes it."""
        logits = state @ self._reduce[layer] @ self._expand[layer] + self._bias[layer]
        likely = 1 / (1 + np.exp(-logits))
        self._likelihood = likely.mean(axis=0, dtype=float).reshape(self._reach)
        self._layer = layer

    def predict(self, layer: int) -> FloatArray | None:
        """As Predictor.predict; asked before the routing of the layer that was seen, for the layer below it, too."""
        first = layer + 1 - self._layer
        if self._layer < 0 or first not in (0, 1):
            return None
        rows = self._likelihood[first : self._num_layers - self._layer]
        return rows if len(rows) else None
