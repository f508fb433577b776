"""What n-grams add to the streams in front of a layer (Qwen4ExpTextPLELayer in transformers).

Of a token's rows e of the table and streams x_s:
    a_s = norm(W_key e)_s . norm(x)_s / sqrt(hidden)
    g_s = sigmoid(sign(a_s) sqrt |a_s|) W_value e
    x_s <- x_s + g_s + silu(convolution(norm(g))_s)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.kv_cache import Cache, LayerState, Span
from moeinf.models.layers.protocol import Attention, Positions, Weights
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.state import RecurrentState
from moeinf.models.layers.streams.gated_residual import SLICE, StreamNorm, StreamsConfig
from moeinf.types import Workspace

_LEAST = 1e-6  # of |a_s|


@dataclass(frozen=True, slots=True)
class NgramLayerConfig:
    streams: StreamsConfig
    embed_dim: int
    kernel: int  # tokens that the convolution sees
    dilation: int  # how far apart they are

    @property
    def before(self) -> int:
        """Tokens whose inputs the convolution keeps."""
        return (self.kernel - 1) * self.dilation

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * self.before * self.streams.width


@dataclass(slots=True)
class Given:
    """The rows of the tables for the tokens of this pass: [tokens, tables * embed_dim]."""

    rows: list[Array] = field(default_factory=list)  # one


class NgramLayer:
    """In front of the attention of a layer."""

    def __init__(
        self, weights: Weights, config: NgramLayerConfig, prefix: str, given: Given, table: int, number: int
    ) -> None:
        """given: shared with the stem; table: which of the rows; number: of the state in the cache."""
        c, streams = config, config.streams
        self._config, self._math, self._given, self._number = c, weights.math, given, number
        self._columns = slice(table * c.embed_dim, (table + 1) * c.embed_dim)
        self._keys, self._values = (weights.linear(f"{prefix}{name}_proj.weight") for name in ("key", "value"))
        self._key_norm, self._query_norm, self._conv_norm = (
            StreamNorm(weights, streams, f"{prefix}norm_{name}.weight") for name in ("key", "query", "conv")
        )
        self._convolution: Convolution[Array] = Convolution(
            weights, f"{prefix}conv1d.", streams.width, c.kernel, c.dilation
        )

    def new_state(self, capacity: int) -> RecurrentState[Array]:
        return RecurrentState(self._math, (self._config.before, self._config.streams.width), (0,))

    def add_to(self, x: Hidden, rows: slice, cache: Cache) -> None:
        """rows: those of the pass that go on with the sequence of a cache."""
        state: RecurrentState[Array] = cache.states[self._number]
        before, x, looked_up = state.conv, x[rows], self._given.rows[0][rows]
        for at in range(0, len(x), SLICE):
            part = x[at : at + SLICE]
            gated = self._gated(part, looked_up[at : at + SLICE, self._columns] * 1.0)
            flat = gated.reshape(*part.shape)
            normed = self._conv_norm(gated).reshape(*part.shape)
            part += flat + self._math.silu(self._convolution(normed, before, state.new_conv))
            before = state.new_conv

    def _gated(self, x: Hidden, rows: Array) -> Array:
        """rows [tokens, embed_dim] -> [tokens, streams, hidden]."""
        math, hidden = self._math, self._config.streams.hidden_size
        products = math.sum(self._key_norm(self._keys(rows)) * self._query_norm(x), -1, True) * hidden**-0.5
        root = math.clip(abs(products), _LEAST, float("inf")) ** 0.5
        signed = math.where(products > 0, root, math.where(products == 0, products, -root))
        return math.sigmoid(signed) * self._values(rows)[:, None]


class WithNgrams:
    """moeinf.models.layers.protocol.Attention: a layer with n-grams in front of it."""

    def __init__(self, ngrams: NgramLayer, layer: Attention) -> None:
        self._ngrams, self._layer = ngrams, layer

    def new_state(self, capacity: int) -> LayerState:
        return self._layer.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        for span in spans:
            self._ngrams.add_to(x, span.rows, span.cache)
        self._layer.add_rows(x, spans)


def ngram_layer_shapes(c: NgramLayerConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors of a layer, without its table."""
    width = c.streams.width
    norms: Shapes = {f"{prefix}norm_{name}.weight": (width,) for name in ("key", "query", "conv")}
    return norms | {
        f"{prefix}key_proj.weight": (width, c.embed_dim),
        f"{prefix}value_proj.weight": (c.streams.hidden_size, c.embed_dim),
        f"{prefix}conv1d.weight": (width, 1, c.kernel),
    }


def ngram_layer_workspace(c: NgramLayerConfig, tables: int) -> Workspace:
    """Rows of a pass, looked up and where they are computed with; of a slice what is made of them."""
    return Workspace(token=3 * tables * c.embed_dim, parts=(SLICE + c.before) * 9 * c.streams.width, inputs=c.embed_dim)
