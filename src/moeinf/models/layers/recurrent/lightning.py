"""Lightning attention (arXiv 2501.08313): linear attention with a fixed decay for each head.

Of a head with keys k, queries q and values v, and its decay a:
    S <- a S + k v^T        S [head_dim, head_dim]
    out = S^T q
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A, function_of, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import LayersOf, P, R
from moeinf.models.layers.recurrent.mamba2 import CHUNK, ScanPart
from moeinf.models.layers.recurrent.mamba_config import SLICE
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, passes
from moeinf.types import Activation, Float32Array, FloatArray, Workspace

_EPS = 1e-6  # of the norm of all heads' outputs, whatever the model's


@dataclass(frozen=True, slots=True)
class LightningConfig:
    hidden_size: int
    num_heads: int
    head_dim: int
    num_layers: int  # of the model, by which decays depend on the layer
    activation: Activation = "silu"  # of queries, keys and values

    @property
    def width(self) -> int:
        """Of queries, of keys and of values."""
        return self.num_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * self.width * self.head_dim

    def log_decays(self, layer: int) -> Float32Array:
        """[heads]: the logarithm of a. Later layers and later heads keep more."""
        slopes = 2.0 ** (-8 / self.num_heads * np.arange(1, self.num_heads + 1))
        return (-slopes * (1 - layer / (self.num_layers - 1 + 1e-5) + 1e-5)).astype(np.float32)

    def decays(self, layer: int, block: int) -> dict[str, FloatArray]:
        """The tables that published code keeps beside a layer's weights, for blocks of so many tokens."""
        slopes = -self.log_decays(layer).astype(np.float64)[:, None, None]
        tokens = np.arange(1, block + 1)[:, None]
        apart = tokens - tokens.T
        return {
            "slope_rate": slopes,
            "query_decay": np.exp(-slopes * tokens),
            "key_decay": np.exp(-slopes * (block - tokens)),
            "diagonal_decay": np.exp(np.where(apart >= 0, -slopes * apart, -np.inf)),
        }


def lightning_shapes(c: LightningConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors of a layer."""
    return {
        f"{prefix}norm.weight": (c.width,),
        f"{prefix}qkv_proj.weight": (3 * c.width, c.hidden_size),
        f"{prefix}output_gate.weight": (c.width, c.hidden_size),
        f"{prefix}out_proj.weight": (c.hidden_size, c.width),
    }


def lightning_workspace(c: LightningConfig) -> Workspace:
    """What a slice of a pass takes: inputs and outputs, projections, and on a GPU what weighs tokens for each other."""
    fixed = c.num_heads * (4 * CHUNK * CHUNK + 2 * c.head_dim * c.head_dim)
    return Workspace(parts=SLICE * (3 * c.hidden_size + 18 * c.width), fixed=fixed, inputs=c.width)


class Lightning(Generic[A]):
    """moeinf.models.layers.protocol.Attention, of a site without a norm. State and arithmetic are float32."""

    def __init__(self, layers: LayersOf[A, P, R], config: LightningConfig, site: AttentionSite) -> None:
        assert site.norm is None, "what a layer is given is normed already"
        c, weights, prefix = config, layers.weights, site.prefix
        self._config, self._math, self._layer, self._residual = config, weights.math, site.layer, site.residual
        self._qkv, self._gate, self._output = (
            weights.linear(f"{prefix}{name}.weight") for name in ("qkv_proj", "output_gate", "out_proj")
        )
        self._norm = weights.norm(NormConfig(f"{prefix}norm.weight", _EPS))
        self._activated = function_of(self._math, c.activation)
        self._decays = self._math.of_host(np.tile(c.log_decays(site.layer), (SLICE, 1)))
        self._scan = layers.make(ScanPart())

    def new_state(self, capacity: int) -> RecurrentState[A]:
        c = self._config
        return RecurrentState(self._math, (0, 0), (c.num_heads, c.head_dim, c.head_dim))

    def add_rows(self, x: A, spans: Sequence[Span[object]]) -> None:
        for part, pieces in passes(x, spans, self._layer, SLICE):
            self._add_to(part, pieces)

    def _add_to(self, x: A, pieces: Sequence[Piece[A]]) -> None:
        qkv = self._activated(self._qkv(x))
        scanned = [self._scanned(qkv[piece.rows], piece) for piece in pieces]
        out = self._norm(joined(self._math, scanned))
        x += self._output(out * self._math.sigmoid(self._gate(x))) * self._residual

    def _scanned(self, qkv: A, piece: Piece[A]) -> A:
        """What the heads give of a piece's tokens, [tokens, width]."""
        c, tokens = self._config, len(qkv)
        by_head = qkv.reshape(tokens, c.num_heads, 3 * c.head_dim)
        q, k, v = (by_head[:, :, at * c.head_dim : (at + 1) * c.head_dim] for at in range(3))
        return self._scan(q, k, v, self._decays[:tokens], piece.heads, piece.new_heads).reshape(tokens, c.width)


def lightning_mixer(c: LightningConfig) -> Recurrent:
    shapes, memory = partial(lightning_shapes, c), lightning_workspace(c)
    return Recurrent("self_attn", shapes, memory, c.state_bytes, lambda layers, site: Lightning(layers, c, site))
