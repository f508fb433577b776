"""Hyper-connections whose mixture is gated by number (Qwen4ExpTextGatedResidual in transformers).

Of streams x [count, hidden], each divided by its RMS and multiplied by its weights, n = norm(x):
    gates = sigmoid(W_up silu(W_down n / count))        [count, hidden]
    given = mean over the streams of gates * n
    x_s <- x_s + 2 sigmoid(w_s n / count) out           of each stream s, out: what the layer makes of `given`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.protocol import WeightsOf
from moeinf.types import Workspace

SLICE = 64  # tokens that are mixed at once


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    count: int
    hidden_size: int
    rank: int  # what gates go through
    norm_eps: float

    @property
    def width(self) -> int:
        """Of all streams of a token."""
        return self.count * self.hidden_size


class StreamNorm(Generic[A]):
    """x / rms(x) * (weight + 1) of each stream by itself."""

    def __init__(self, weights: WeightsOf[A, object], config: StreamsConfig, name: str) -> None:
        self._config, self._math = config, weights.math
        self._weight = (weights.vector(name) + 1).reshape(config.count, config.hidden_size)

    def __call__(self, x: A) -> A:
        """[tokens, count * hidden] or the same by streams -> [tokens, count, hidden]."""
        c = self._config
        x = x.reshape(len(x), c.count, c.hidden_size)
        mean = self._math.sum(x * x, -1, True) * (1 / c.hidden_size)
        return x * (mean + c.norm_eps) ** -0.5 * self._weight


class GatedResidual(Generic[A]):
    """moeinf.models.layers.streams.hyper.Connection."""

    def __init__(
        self, weights: WeightsOf[A, object], config: StreamsConfig, prefix: str, *, writes: bool = True
    ) -> None:
        """prefix: of the tensors that gated_residual_shapes names. writes: False behind the last layer."""
        self._config, self._math = config, weights.math
        self._norm = StreamNorm(weights, config, f"{prefix}hc_norm.weight")
        self._down = weights.linear(f"{prefix}input_mix_weight_down.weight")
        self._up = weights.linear(f"{prefix}input_mix_weight_up.weight")
        self._inject = weights.linear(f"{prefix}block_inject_weight.weight") if writes else None

    def read(self, streams: A) -> tuple[A, A | None]:
        parts = [self._read(streams[at : at + SLICE]) for at in range(0, len(streams), SLICE)]
        joined = self._math.concatenate
        given = joined([part for part, _ in parts], 0)
        shares = [share for _, share in parts if share is not None]
        return given, joined(shares, 0) if shares else None

    def look(self, streams: A) -> A:
        return self.read(streams)[0]

    def _read(self, streams: A) -> tuple[A, A | None]:
        c, math = self._config, self._math
        normed = self._norm(streams)
        flat = normed.reshape(len(normed), c.width)
        gates = math.sigmoid(self._up(math.silu(self._down(flat) * (1 / c.count))))
        given = math.sum(gates.reshape(*normed.shape) * normed, 1, False) * (1 / c.count)
        return given, None if self._inject is None else math.sigmoid(self._inject(flat) * (1 / c.count)) * 2

    def write(self, streams: A, added: A, known: object) -> None:
        c, shares = self._config, known
        assert shares is not None
        for at in range(0, len(streams), SLICE):
            part = streams[at : at + SLICE]
            spread = added[at : at + SLICE][:, None] * shares[at : at + SLICE][:, :, None]  # type: ignore[index]
            part += spread.reshape(len(part), c.width)


def gated_residual_shapes(c: StreamsConfig, prefix: str, *, writes: bool = True) -> Shapes:
    shapes: Shapes = {
        f"{prefix}hc_norm.weight": (c.width,),
        f"{prefix}input_mix_weight_down.weight": (c.rank, c.width),
        f"{prefix}input_mix_weight_up.weight": (c.width, c.rank),
    }
    return shapes | ({f"{prefix}block_inject_weight.weight": (c.count, c.width)} if writes else {})


def streams_workspace(c: StreamsConfig) -> Workspace:
    """Streams of a pass, and what layers are given and give; of a slice, its norm, gates and their products."""
    return Workspace(token=c.width + 2 * c.hidden_size, parts=SLICE * 7 * c.width, inputs=c.width)
