"""Rotary positions: which angle each pair of a head's dimensions is turned by, at each place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeinf.types import Float32Array


@dataclass(frozen=True, eq=False)
class Rope:
    """Pair i of a token at place p is turned by p * frequencies[i]; cos and sin are multiplied by `scale`.

    Over the first 2 * len(frequencies) dimensions of a head; the others stay as they are. Pairs are (i, i + half), or,
    interleaved, (2 i, 2 i + 1).
    """

    frequencies: Float32Array  # [rotary_dim / 2]
    scale: float = 1.0  # yarn and longrope: of queries and keys
    interleaved: bool = False

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.frequencies)

    def tables(self, start: int, num_tokens: int) -> tuple[Float32Array, Float32Array]:
        """cos and sin [num_tokens, rotary_dim / 2] of the places from `start`."""
        angles = np.arange(start, start + num_tokens, dtype=np.float32)[:, None] * self.frequencies
        scale = np.float32(self.scale)
        return np.cos(angles) * scale, np.sin(angles) * scale


def plain_rope(rotary_dim: int, theta: float) -> Rope:
    """frequencies theta^(-2 i / rotary_dim)."""
    return Rope((theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim)).astype(np.float32))
