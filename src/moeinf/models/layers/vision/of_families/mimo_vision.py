"""How MiMo-V2.5 sees: a ViT whose blocks mostly see a band of patches, of the picture by its rows or by its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention_config import MLP_NAMES, NormConfig
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.vision.image_processor import OF_CLIP, Defaults, MergedPatches, Patches
from moeinf.models.layers.vision.mergers import Merger
from moeinf.models.layers.vision.of_families.banded import banded, turned_halves
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Part, Vision, axial_frequencies
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import Float32Array, IntArray

_TOWER = "visual."
_BY_COLUMNS = 1  # as config.json numbers the kinds of blocks
_DEFAULTS = Defaults(8192, 8388608, *OF_CLIP)


def mimo_vision(f: Fields, hidden_size: int) -> Vision | None:
    """f: config.json; hidden_size: of the language model."""
    if f.get("vision_config") is None:
        return None
    v = f.within("vision_config")
    v.fixed(hidden_act="silu", in_chans=3, in_channels=3, out_hidden_size=hidden_size, use_sink=True)
    f.only("vision_model_type", "mimovl", None)
    patch, merge, frames = (
        v.count(name, default)
        for name, default in (("patch_size", 16), ("spatial_merge_size", 2), ("temporal_patch_size", 2))
    )
    depth = v.count("depth", 28, maximum=MOST_LAYERS)
    hidden, heads, size = v.count("hidden_size", 1280), v.count("num_heads", 32), v.count("qk_channels", 64)
    v.only("kv_channels", size, None)
    kv_heads, eps = v.count("num_key_value_heads", 8), v.number("rms_norm_eps", 1e-6)
    if heads % kv_heads:
        raise UnsupportedModelError(f"{v.where}: {heads} heads are no multiple of num_key_value_heads, {kv_heads}")
    attention = tower_attention(hidden, heads, eps, "rms", head_dim=size)
    tower = VitConfig(
        replace(attention, num_kv_heads=kv_heads),
        depth,
        hidden_size,
        Cut.film(patch, merge, frames),
        TowerMlp(tuple(f"mlp.{name}" for name in MLP_NAMES), v.count("intermediate_size", 4608), "silu"),
        VitNames(_TOWER),
        biased_patches=False,
    )
    merger = Projector(
        (
            NormConfig(f"{_TOWER}merger.ln_q.weight", 1e-6, "centred"),
            "patch by patch",
            Dense(f"{_TOWER}merger.mlp.0", hidden * merge**2, biased=False, activation="gelu"),
            Dense(f"{_TOWER}merger.mlp.2", hidden_size, biased=False),
        )
    )
    return Vision(
        MimoTower(tower, merger, _bands(v, depth), v.count("visual_token_window_size", 64)),
        lambda settings, tokens: MergedPatches.parse(settings, patch, merge, frames, tokens, _DEFAULTS),
        f.count("image_token_id", 151655),
        merge**2,
        (f.count("vision_start_token_id", 151652), f.count("vision_end_token_id", 151653)),
    )


def _bands(v: Fields, depth: int) -> dict[int, bool]:
    """The blocks that see a band, and whether that is of the columns."""
    whole = v.layers("fullatt_block_indexes")
    kinds = v.get("vit_window_attn_types")
    if not isinstance(kinds, list) or len(kinds) != depth or any(each not in (-1, 0, _BY_COLUMNS) for each in kinds):
        raise CheckpointError(f"{v.said('vit_window_attn_types')} must be -1, 0 or 1 for each of {depth} blocks")
    return {i: kind == _BY_COLUMNS for i, kind in enumerate(kinds) if i not in whole}


class MimoTower(MergingTower):
    def __init__(self, config: VitConfig, merger: Merger, bands: Mapping[int, bool], reach: int) -> None:
        """bands: as _bands gives them. reach: patches on either side of each."""
        super().__init__(config, merger)
        self._bands, self._reach, self._view = bands, reach, (0, 0)
        self.shapes |= {self._named(i, "sinks"): (self.attention.num_heads,) for i in bands}

    def _named(self, number: int, name: str) -> str:
        return f"{self._config.block(number)}{self._config.names.attention}{name}"

    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        [view] = views
        self._view = view.grid
        return super().rows(part, views)

    def _attend(
        self,
        part: Layers,
        number: int,
        x: Array,
        cache: Cache,
        views: Sequence[tuple[slice, object]],
        scale: Array | None,
    ) -> None:
        if number not in self._bands:
            super()._attend(part, number, x, cache, views, scale)
            return
        a, weights, name = self.attention, part.weights, partial(self._named, number)
        row, col = self._places(self._view)
        order = self._by_columns() if self._bands[number] else np.arange(len(row))
        both = weights.linear(name("qkv.weight"), name("qkv.bias"))
        norm = weights.norm(self._norm(self._config.block(number) + self._config.names.norms[0]))
        heads = weights.math.to_host(both(norm(x))).reshape(len(row), -1, a.head_dim)[order]
        frequencies = axial_frequencies(a.head_dim, self._config.theta)
        angles = np.concatenate([place[order, None] * frequencies for place in (row, col)], 1)
        ends = np.cumsum([a.num_heads, a.num_kv_heads])
        q, k, v = np.split(heads, ends, 1)
        sinks = weights.math.to_host(weights.vector(name("sinks")))
        seen = banded(turned_halves(q, angles), turned_halves(k, angles), v, sinks, self._reach)
        x += weights.linear(name("proj.weight"), name("proj.bias"))(weights.math.of_host(seen[np.argsort(order)]))

    def _by_columns(self) -> IntArray:
        """Patches in the order of the columns of tokens; those of a token stay together."""
        square = self._config.cut.merge**2
        rows, cols = (side // self._config.cut.merge for side in self._view)
        tokens = np.arange(rows * cols).reshape(rows, cols).T.reshape(-1, 1)
        found: IntArray = (tokens * square + np.arange(square)).reshape(-1)
        return found
