"""Gated DeltaNet (delta_net.py) on the CPU: the recurrence as it is written, token by token, in one native call.

A head's state fits into the second-level cache, where a token costs a tenth of what its projections do: chunks would
save nothing, and round differently in passes of other lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.recurrent.channel_delta import ChannelDeltaPart
from moeinf.models.layers.recurrent.delta_net import UNIT_EPS, DeltaNetPart, delta_state
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, pieces_of
from moeinf.types import Float32Array, Routing


class NativeDeltaNet:
    """A DeltaNetPart."""

    def __init__(self, memory: HostMemory, part: DeltaNetPart[Float32Array, Angles, Routing]) -> None:
        c, site, weights, prefix = part.config, part.site, memory.weights, part.site.prefix
        self._config, self._math, self._layer = c, weights.math, site.layer
        taps = weights.vector(f"{prefix}conv1d.weight").reshape(c.channels, c.kernel)
        self._native = _native.DeltaLayer(
            weights.kernels,
            [each for name, rows in c.projections(prefix).items() for each in weights.stacked(name, rows)],
            weights.linear(f"{prefix}out_proj.weight").native,
            norm=None if site.norm is None else weights.norm_vectors(site.norm, c.norm)[0],
            taps=np.ascontiguousarray(taps.T),
            decay=-np.exp(weights.vector(f"{prefix}A_log")),
            bias=weights.vector(f"{prefix}dt_bias"),
            q_norm=_lengths(c.key_dim, c.key_dim**-0.5),
            k_norm=_lengths(c.key_dim, 1),
            head_norm=weights.vector(f"{prefix}norm.weight"),
            num_key_heads=c.num_key_heads,
            norm_eps=c.norm_eps,
            unit_eps=UNIT_EPS / c.key_dim,
            sigmoid_gates=c.sigmoid_gates,
            replaces=site.replaces,
        )

    def new_state(self, capacity: int) -> RecurrentState[Float32Array]:
        return delta_state(self._config, self._math)

    def add_rows(self, x: Float32Array, spans: Sequence[Span[object]]) -> None:
        pieces: list[Piece[Float32Array]] = pieces_of(spans, self._layer)
        rows = [piece.rows.stop - piece.rows.start for piece in pieces]
        self._native.run(x, [piece.states for piece in pieces], rows)


def _lengths(key_dim: int, length: float) -> Float32Array:
    """The weight of an RMS norm that gives its output this length."""
    return np.full(key_dim, length * key_dim**-0.5, np.float32)


class NativeChannelDelta:
    """A ChannelDeltaPart."""

    def __init__(self, memory: HostMemory, part: ChannelDeltaPart[Float32Array, Angles, Routing]) -> None:
        self._kernels = memory.weights.kernels

    def __call__(self, *given: Float32Array) -> Float32Array:
        q, k, v, decay, rate, state, new_state = given
        out = np.empty((q.shape[1], len(q), q.shape[2]), np.float32)
        _native.channel_delta(self._kernels, q, k, v, np.exp(decay), rate, state, new_state, out)
        by_token: Float32Array = out.swapaxes(0, 1)
        return by_token
