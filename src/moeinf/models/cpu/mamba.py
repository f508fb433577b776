"""Mamba-2 and Mamba (mamba2.py, mamba1.py) on the CPU: recurrences as they are written, in one native call each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.recurrent.mamba1 import ChannelScanPart
from moeinf.models.layers.recurrent.mamba2 import Mamba2Part, ScanPart
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, pieces_of
from moeinf.types import Float32Array, Routing


class NativeMamba2:
    """A Mamba2Part."""

    def __init__(self, memory: HostMemory, part: Mamba2Part[Float32Array, Angles, Routing]) -> None:
        c, site, weights, prefix = part.config, part.site, memory.weights, part.site.prefix
        self._config, self._math, self._layer = c, weights.math, site.layer
        taps = weights.vector(f"{prefix}conv1d.weight").reshape(c.channels, c.kernel)
        bias = weights.vector(f"{prefix}conv1d.bias") if c.conv_bias else np.zeros(c.channels, np.float32)
        self._native = _native.MambaLayer(
            weights.kernels,
            weights.linear(f"{prefix}in_proj.weight").native,
            weights.linear(f"{prefix}out_proj.weight").native,
            norm=weights.vector(site.front),
            taps=np.ascontiguousarray(taps.T),
            conv_bias=bias,
            decay=-np.exp(weights.vector(f"{prefix}A_log")),
            bias=weights.vector(f"{prefix}dt_bias"),
            skip=weights.vector(f"{prefix}D"),
            gate_norm=weights.vector(f"{prefix}norm.weight"),
            in_bias=weights.vector(f"{prefix}in_proj.bias") if c.biased else None,
            out_bias=weights.vector(f"{prefix}out_proj.bias") if c.biased else None,
            num_groups=c.num_groups,
            norm_eps=c.norm_eps,
            residual=site.residual,
        )

    def new_state(self, capacity: int) -> RecurrentState[Float32Array]:
        return RecurrentState(self._math, self._config.conv_shape, self._config.heads_shape)

    def add_rows(self, x: Float32Array, spans: Sequence[Span[object]]) -> None:
        pieces: list[Piece[Float32Array]] = pieces_of(spans, self._layer)
        rows = [piece.rows.stop - piece.rows.start for piece in pieces]
        self._native.run(x, [piece.states for piece in pieces], rows)


class NativeScan:
    """A ScanPart."""

    def __init__(self, memory: HostMemory, part: ScanPart[Float32Array, Angles, Routing]) -> None:
        self._kernels = memory.weights.kernels

    def __call__(self, *given: Float32Array) -> Float32Array:
        q, k, v, decay, state, new_state = given
        q, k, v, decays = map(np.ascontiguousarray, (q, k, v.swapaxes(0, 1), np.exp(decay).T))
        out = np.empty_like(v)
        _native.scan(self._kernels, q, k, v, decays, state, new_state, out)
        by_token: Float32Array = out.swapaxes(0, 1)
        return by_token


class NativeChannelScan:
    """A ChannelScanPart."""

    def __init__(self, memory: HostMemory, part: ChannelScanPart[Float32Array, Angles, Routing]) -> None:
        weights = memory.weights
        self._kernels, self._skip = weights.kernels, weights.vector(part.skip)
        rates = -np.exp(weights.vector(part.rates)).reshape(len(self._skip), -1)
        self._rates = np.ascontiguousarray(rates.T)

    def __call__(
        self,
        steps: Float32Array,
        values: Float32Array,
        k: Float32Array,
        q: Float32Array,
        projected: Float32Array,
        state: Float32Array,
        new_state: Float32Array,
    ) -> Float32Array:
        out, layer = np.empty_like(values), (self._rates, self._skip)
        _native.channel_scan(self._kernels, steps, values, k, q, projected, *layer, state, new_state, out)
        return out
