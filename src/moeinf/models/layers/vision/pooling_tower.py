"""The vision tower of Gemma 4: a transformer over patches, whose outputs are averaged in squares into tokens.

Positions are learnt for rows and columns apart, and half of each head turns by the column, half by the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention.grouped import attention_shapes
from moeinf.models.layers.attention_config import (
    MLP_NAMES,
    AttentionConfig,
    AttentionSite,
    HeadNorms,
    NormConfig,
    Scores,
    Shapes,
    Sight,
    mlp_shapes,
)
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import plain_rope
from moeinf.models.layers.vision.image_processor import Patches, PooledPatches
from moeinf.models.layers.vision.vision import Part, Tower, attend_all, axial_frequencies, by_blocks, turned_by
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array

_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_TOWER, _PROJECTOR = "model.vision_tower.", "model.embed_vision."
_LINEAR = ".linear.weight"  # the published name of a matrix of a layer ends so


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    attention: AttentionConfig
    depth: int
    intermediate: int
    out_hidden: int
    patch: int
    pool: int
    places: int  # rows or columns that have learnt positions
    standardised: bool
    theta: float

    @staticmethod
    def parse(f: Fields, out_hidden: int) -> PoolingConfig:
        """f: vision_config."""
        f.only("hidden_activation", "gelu_pytorch_tanh", None)
        f.only("use_clipped_linears", False, None)
        f.only("attention_bias", False, None)
        rope = f.within("rope_parameters")
        rope.only("rope_type", "axial", "default", None)
        heads, head_dim = f.count("num_attention_heads", 12), f.count("head_dim", 64)
        if head_dim % 4:
            raise UnsupportedModelError(f"{f.where}: head_dim {head_dim} is no multiple of 4")
        attention = AttentionConfig(
            f.count("hidden_size", 768),
            heads,
            f.count("num_key_value_heads", heads),
            head_dim,
            f.number("rms_norm_eps", 1e-6),
            plain_rope(head_dim, 1e4),
            head_norms=HeadNorms(of_values=True),
            scores=Scores(1.0),
            sight=Sight(sees="all"),
        )
        return PoolingConfig(
            attention,
            f.count("num_hidden_layers", 16, maximum=MOST_LAYERS),
            f.count("intermediate_size", 3072),
            out_hidden,
            f.count("patch_size", 16),
            f.count("pooling_kernel_size", 3),
            f.count("position_embedding_size", 10240),
            f.flag("standardize", False),
            rope.number("rope_theta", 100.0),
        )

    def form(self, f: Fields, tokens: int | None) -> PooledPatches:
        return PooledPatches.parse(f, self.patch, self.pool, tokens)


class PoolingTower(Tower):
    attention: AttentionConfig

    def __init__(self, config: PoolingConfig) -> None:
        self._config, self.attention, self.patch_numbers = config, config.attention, 3 * config.patch**2
        self.shapes = self._shapes()

    def _shapes(self) -> Shapes:
        c, hidden, shapes = self._config, self.attention.hidden_size, Shapes()
        for i in range(c.depth):
            layer = f"{_TOWER}encoder.layers.{i}."
            found = attention_shapes(self.attention, f"{layer}self_attn.")
            found |= mlp_shapes(hidden, c.intermediate, f"{layer}mlp.")
            shapes |= {_published(name): shape for name, shape in found.items()}
            shapes |= {f"{layer}{norm}.weight": (hidden,) for norm in _NORMS}
        if c.standardised:
            shapes |= {f"{_TOWER}std_{name}": (hidden,) for name in ("bias", "scale")}
        return shapes | {
            f"{_TOWER}patch_embedder.input_proj.weight": (hidden, 3 * c.patch**2),
            f"{_TOWER}patch_embedder.position_embedding_table": (2, c.places, hidden),
            f"{_PROJECTOR}embedding_projection.weight": (c.out_hidden, hidden),
        }

    def prepared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Under names without `.linear`, and with the dimensions of queries and keys in another order.

        The published code turns the pairs (i, i + a quarter) of each half of a head; in this order they are the pairs
        (i, i + half) of the head. Scores are the same, as queries and keys both have it.
        """
        quarters = np.arange(self.attention.head_dim).reshape(4, -1)
        order = quarters[[0, 2, 1, 3]].reshape(-1)
        found = {}
        for name, tensor in tensors.items():
            if name.endswith(("q_proj" + _LINEAR, "k_proj" + _LINEAR, "q_norm.weight", "k_norm.weight")):
                heads = tensor.data.reshape(-1, self.attention.head_dim, _row_bytes(tensor))
                tensor = replace(tensor, data=np.ascontiguousarray(heads[:, order]).reshape(-1))
            found[name.replace(_LINEAR, ".weight")] = tensor
        return found

    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        c, hidden, [patches] = self._config, self.attention.hidden_size, views
        row, col = (axis.reshape(-1) for axis in np.indices(patches.grid))
        first = part(f"{_TOWER}patch_embedder.")
        first.begin_pass(len(row))
        math = first.weights.math
        x = first.weights.linear(f"{_TOWER}patch_embedder.input_proj.weight")(math.of_host(2 * patches.values - 1))
        table = math.to_host(first.weights.vector(f"{_TOWER}patch_embedder.position_embedding_table"))
        by_col, by_row = table.reshape(2, c.places, hidden)
        x += math.of_host(by_col[col] + by_row[row])
        turned = turned_by(first, axial_frequencies(self.attention.head_dim, c.theta), col, row)
        cache = Cache([], len(row))
        for i in range(c.depth):
            name = f"{_TOWER}encoder.layers.{i}."
            self._layer(part(name), name, x, cache, turned)
        return math.to_host(self._projected(part, self._pooled(x, patches.grid)))

    def _layer(self, part: Layers, name: str, x: Array, cache: Cache, turned: object) -> None:
        weights, eps = part.weights, self.attention.norm_eps
        front, behind, *others = (f"{name}{norm}.weight" for norm in _NORMS)
        site = AttentionSite(0, f"{name}self_attn.", front, output_norm=behind)
        attend_all(part, self.attention, site, x, cache, turned)
        before, after = (weights.norm(NormConfig(norm, eps)) for norm in others)
        first, *rest = (f"{name}mlp.{each}.weight" for each in MLP_NAMES)
        gate, (up, down) = weights.linear(first, activation="gelu_tanh"), map(weights.linear, rest)

        def mlp(rows: Array) -> Array:
            normed = before(rows)
            return after(down(gate(normed) * up(normed)))

        by_blocks(x, mlp)

    def _pooled(self, x: Array, grid: tuple[int, int]) -> Array:
        """The mean of each square of patches, [tokens, hidden], which is multiplied by the root of `hidden`."""
        pool, hidden = self._config.pool, self.attention.hidden_size
        squares = x.reshape(grid[0] // pool, pool, grid[1] // pool, pool, hidden)
        columns = squares[:, 0]
        for i in range(1, pool):
            columns = columns + squares[:, i]
        summed = columns[:, :, 0]
        for i in range(1, pool):
            summed = summed + columns[:, :, i]
        tokens: Array = summed.reshape(-1, hidden) * (hidden**0.5 / pool**2)
        return tokens

    def _projected(self, part: Part, x: Array) -> Array:
        if self._config.standardised:
            weights = part(f"{_TOWER}std_").weights
            x = (x - weights.vector(f"{_TOWER}std_bias")) * weights.vector(f"{_TOWER}std_scale")
        weights = part(_PROJECTOR).weights
        squares = weights.math.sum(x * x, -1, True) / self.attention.hidden_size
        normed = x * (squares + self.attention.norm_eps) ** -0.5
        return weights.linear(f"{_PROJECTOR}embedding_projection.weight")(normed)


def _published(name: str) -> str:
    return name.replace("_proj.weight", "_proj" + _LINEAR)


def _row_bytes(tensor: StoredTensor) -> int:
    return len(tensor.data) // tensor.shape[0]
