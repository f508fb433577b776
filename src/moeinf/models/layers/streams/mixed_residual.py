"""Hyper-connections whose weights are few numbers of each token, mixed or not (mHC: DeepSeek-V4; iHC: Hunyuan 4).

Of streams x [count, hidden] of a token, all together divided by their RMS, m = W x / rms(x):
    before = sigmoid(s_0 m_before + b) + eps                        [count]
    after = magnitude sigmoid(s_1 m_after + b) + after_eps          [count]
    mixing = normalised(softmax(s_2 m_mixing + b) + eps)            [count, count], doubly stochastic
    given = sum over the streams of before_s x_s
    x_t <- after_t out + sum over the streams of mixing_st x_s      out: what the layer makes of `given`
normalised divides columns by their sums, then rows and columns in turn (Sinkhorn and Knopp, 1967). Without mixing, each
stream keeps what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.protocol import WeightsOf
from moeinf.models.layers.streams.gated_residual import SLICE
from moeinf.types import Workspace


@dataclass(frozen=True, slots=True)
class MixedStreams:
    count: int
    hidden_size: int
    norm_eps: float
    eps: float
    rounds: int = 0  # in which rows and columns are normalised; 0: there is no mixing
    magnitude: float = 2.0
    after_eps: float = 0.0

    @property
    def width(self) -> int:
        """Of all streams of a token."""
        return self.count * self.hidden_size

    @property
    def numbers(self) -> int:
        """Of a token, which say how a layer is connected."""
        return (2 + (self.count if self.rounds else 0)) * self.count


class MixedResidual(Generic[A]):
    """moeinf.models.layers.streams.hyper.Connection."""

    def __init__(
        self, weights: WeightsOf[A, object], config: MixedStreams, prefix: str, *, writes: bool = True
    ) -> None:
        """prefix: of the tensors that mixed_residual_shapes names. writes: False behind the last layer."""
        self._config, self._math, self._fused, self._writes = config, weights.math, weights.fused, writes
        self._numbers = weights.linear(f"{prefix}fn")
        self._scale, self._base = weights.vector(f"{prefix}scale"), weights.vector(f"{prefix}base")

    def read(self, streams: A) -> tuple[A, tuple[A, A | None] | None]:
        parts = [self._read(streams[at : at + SLICE]) for at in range(0, len(streams), SLICE)]
        joined = self._math.concatenate
        given = joined([part for part, _ in parts], 0)
        if not self._writes:
            return given, None
        numbers = joined([numbers for _, numbers in parts], 0)
        return given, (self._after(numbers), self._mixing(numbers) if self._config.rounds else None)

    def write(self, streams: A, added: A, known: object) -> None:
        assert isinstance(known, tuple)
        after, mixing = known
        for at in range(0, len(streams), SLICE):
            of_slice = slice(at, at + SLICE)
            mixed = None if mixing is None else mixing[of_slice]
            self._fused.mix(streams[of_slice], added[of_slice], after[of_slice], mixed)

    def look(self, streams: A) -> A:
        return self.read(streams)[0]

    def _read(self, streams: A) -> tuple[A, A]:
        numbers = self._numbers_of(streams)
        return self._fused.weighed(streams, self._shares(numbers)), numbers

    def _numbers_of(self, streams: A) -> A:
        c, math = self._config, self._math
        rms = (math.sum(streams * streams, -1, True) * (1 / c.width) + c.norm_eps) ** 0.5
        return self._numbers(streams) / rms

    def _shares(self, numbers: A) -> A:
        """Of each stream in the mixture."""
        c = self._config
        return self._math.sigmoid(numbers[:, : c.count] * self._scale[:1] + self._base[: c.count]) + c.eps

    def _after(self, numbers: A) -> A:
        c, at = self._config, slice(self._config.count, 2 * self._config.count)
        return self._math.sigmoid(numbers[:, at] * self._scale[1:2] + self._base[at]) * c.magnitude + c.after_eps

    def _mixing(self, numbers: A) -> A:
        """[tokens, streams that are read, streams that are written]."""
        c, math, at = self._config, self._math, slice(2 * self._config.count, None)
        logits = numbers[:, at] * self._scale[2:3] + self._base[at]
        mixing = math.softmax(logits.reshape(len(logits), c.count, c.count)) + c.eps
        mixing = mixing / (math.sum(mixing, 1, True) + c.eps)
        for _ in range(c.rounds - 1):
            mixing = mixing / (math.sum(mixing, 2, True) + c.eps)
            mixing = mixing / (math.sum(mixing, 1, True) + c.eps)
        return mixing


def mixed_residual_shapes(c: MixedStreams, prefix: str, *, writes: bool = True) -> Shapes:
    count = c.numbers if writes else c.count
    scales = 1 if not writes else 3 if c.rounds else 2
    return {f"{prefix}fn": (count, c.width), f"{prefix}base": (count,), f"{prefix}scale": (scales,)}


def mixed_streams_workspace(c: MixedStreams) -> Workspace:
    """Streams of a pass, and what layers are given and give; of a slice, its squares, products and what they become."""
    return Workspace(token=c.width + 2 * c.hidden_size + 4 * c.numbers, parts=SLICE * 4 * c.width, inputs=c.width)
