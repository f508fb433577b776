"""How Muse Spark sees: a ViT most of whose blocks see within squares of patches, and an MLP of the patches of a token.

The published code looks learnt positions up by patches in rows as long as the picture is tall: of patch n, counted row
by row, that of row n // height and column n % height, in a grid whose sides are swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.vision.image_processor import Patches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.mergers import Merger
from moeinf.models.layers.vision.processors.shaped_pictures import ShapedPictures
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Part, Vision, Whole, axial_frequencies, turned_by
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import Float32Array, IntArray, JsonObject

_TOWER, _ADAPTER = "model.vision_tower.", "model.vision_adapter."
_BLOCK_EPS = 1e-5  # which no field says
_SIDE = 32  # of learnt positions, as published


def muse_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model, whose stem has the norm of what a tower gives, too."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    patch, merge, frames = (
        v.count(name, default) for name, default in (("patch_size", 14), ("merge_size", 2), ("patch_temporal", 2))
    )
    hidden, depth, side = (
        v.count("hidden_size", 1536),
        v.count("num_hidden_layers", 50, maximum=MOST_LAYERS),
        v.count("pos_emb_height", _SIDE),
    )
    v.only("pos_emb_width", side, *((None,) if side == _SIDE else ()))
    if side % merge:
        raise UnsupportedModelError(f"{v.said('pos_emb_height')} {side} is no multiple of merge_size, {merge}")
    rope, eps = v.within("rope_parameters"), v.number("layer_norm_eps", 1e-5)
    rope.only("rope_type", "axial", None)
    f.fixed(projector_hidden_act="gelu", out_hidden_size=hidden * merge**2)
    kinds = v.kinds("layer_types", depth, "window_attention", "full_attention")
    whole = [(i + 1) % 4 == 0 or i == depth - 1 for i in range(depth)]  # where nothing is said
    tower = VitConfig(
        tower_attention(hidden, v.count("num_attention_heads", 16), _BLOCK_EPS, names=(None, "proj")),
        depth,
        hidden_size,
        Cut(patch, merge, (frames * 3 * patch**2,)),
        TowerMlp(("mlp.fc1", "mlp.fc2"), v.count("intermediate_size", 8960), activation_of(v, default="gelu")),
        VitNames(_TOWER, "layers.", patches="patch_embedder.patch_embedding"),
        SwappedPositions(f"{_TOWER}patch_embedder.position_embedding_table.weight", side, "linear", bare=True),
        theta=rope.number("rope_theta", 1e4),
        biased_patches=False,
        placed=NormConfig(f"{_TOWER}ln_pre.weight", eps, "layer"),
    )
    wide = f.count("projector_hidden_size", 4096)
    merger = Projector(
        (
            NormConfig(f"{_TOWER}ln_post.weight", eps, "layer"),
            "number by number",
            Dense(f"{_ADAPTER}fc1", wide, biased=False, activation="gelu"),
            Dense(f"{_ADAPTER}fc2", wide, biased=False, activation="gelu"),
            Dense("model.vision_projection", hidden_size, biased=False),
        )
    )
    windows = [not each for each in whole] if kinds is None else [kind == "window_attention" for kind in kinds]
    return Vision(
        WindowedTower(tower, merger, windows, side),
        lambda settings, tokens: ShapedPictures.parse(settings, patch, merge, frames, tokens),
        f.count("image_token_id", 200092),
        merge**2,
        layout=Whole(("<|image_start|>",), ("<|image_end|>",)),
    )


@dataclass(frozen=True, slots=True)
class SwappedPositions(LearntPositions):
    def of_patches(self, part: Part, row: IntArray, col: IntArray, grid: tuple[int, int]) -> Array:
        rows, cols = grid
        number = row * cols + col
        return LearntPositions.of_patches(self, part, number // rows, number % rows, (cols, rows))


class WindowedTower(MergingTower):
    """Its patches follow one another window by window, of squares that a picture is cut into from its first corner."""

    def __init__(self, config: VitConfig, merger: Merger, windows: Sequence[bool], side: int) -> None:
        """windows: which blocks see no further than these; side: patches, whole tokens."""
        super().__init__(config, merger)
        self._within, self._side = windows, side
        self._windows: list[tuple[slice, object]] = []

    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        [view] = views
        order, square = self._order(view.grid), self._config.cut.merge**2
        found = super().rows(part, [Patches(view.values[order], view.grid)])
        given: Float32Array = found[np.argsort(order[::square])]
        return given

    def _order(self, grid: tuple[int, int]) -> IntArray:
        return np.argsort(self._window(*super()._places(grid), grid), kind="stable")

    def _window(self, row: IntArray, col: IntArray, grid: tuple[int, int]) -> IntArray:
        """In which each patch is."""
        found: IntArray = row // self._side * grid[1] + col // self._side
        return found

    def _places(self, grid: tuple[int, int]) -> tuple[IntArray, IntArray]:
        row, col = super()._places(grid)
        order = self._order(grid)
        return row[order], col[order]

    def _turned_views(self, first: Layers, views: Sequence[Patches]) -> list[object]:
        [view] = views
        row, col = self._places(view.grid)
        borders = np.flatnonzero(np.diff(self._window(row, col, view.grid), prepend=-1, append=-1)).tolist()
        spans = [slice(start, end) for start, end in pairwise(borders)]
        self._windows = [(span, self._turned(first, row[span], col[span])) for span in spans]
        return super()._turned_views(first, views)

    def _turned(self, first: Layers, row: IntArray, col: IntArray) -> object:
        """By columns first."""
        return turned_by(first, axial_frequencies(self.attention.head_dim, self._config.theta), col, row)

    def _attend(
        self,
        part: Layers,
        number: int,
        x: Array,
        cache: Cache,
        views: Sequence[tuple[slice, object]],
        scale: Array | None,
    ) -> None:
        super()._attend(part, number, x, cache, self._windows if self._within[number] else views, scale)
