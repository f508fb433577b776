"""Command A's image processor: a picture stretched over square tiles, and over one as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeinf.errors import UnsupportedModelError, UsageError
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    MOST_TOKENS,
    OF_CLIP,
    Patches,
    check_common,
    colours_of,
    merged_patches,
    normalised,
)
from moeinf.models.layers.vision.processors.tiled_pictures import tiles_for
from moeinf.types import ByteArray, PictureStep, PictureView, PictureViews


@dataclass(frozen=True, slots=True)
class StretchedTiles:
    patch: int
    merge: int  # patches of a side of what becomes one token
    tile: int  # pixels of a side
    most_tiles: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def parse(f: Fields, patch: int, merge: int, tile: int, tokens: int | None) -> StretchedTiles:
        """f: preprocessor_config.json; patch, merge, tile: the tower's. tokens: the most that the user wants of a
        picture; None: MOST_TOKENS at most. Raises UsageError where that is less than those of a tile."""
        check_common(f)
        f.only("do_normalize", True, None)
        f.only("min_patches", 1, None)
        side = tile // (patch * merge)
        f.only("patch_size", side, None)  # whose square is the number of a tile's tokens
        for name in ("height", "width"):
            f.within("size").only(name, tile, None)
        if tile % (patch * merge):
            raise UnsupportedModelError(f"{f.where}: tiles of {tile} pixels are not cut into whole tokens")
        if tokens is not None and tokens < side**2:
            raise UsageError(f"--picture-tokens {tokens} is too few: a picture of this model has at least {side**2}")
        most = max(1, (tokens or MOST_TOKENS) // side**2 - 1)  # beside the whole
        published = f.count("max_patches", 12) if f.flag("crop_to_patches", True) else 1
        return StretchedTiles(patch, merge, tile, min(most, published), *colours_of(f, OF_CLIP))

    @property
    def unit(self) -> int:
        return self.patch * self.merge

    @property
    def most_tokens(self) -> int:
        return (self.most_tiles + (self.most_tiles > 1)) * (self.tile // self.unit) ** 2

    def views(self, height: int, width: int) -> PictureViews:
        """Tiles in rows, and in a row of its own the whole, unless it is the only tile."""
        whole = PictureStep("bicubic", self.tile, self.tile)
        rows, cols = tiles_for(height, width, self.tile, self.most_tiles, np.float64)
        if rows * cols == 1:
            return (((whole,),),)
        canvas = PictureStep("bicubic", rows * self.tile, cols * self.tile)

        def cut(row: int, col: int) -> PictureView:
            return (canvas, PictureStep("cut", self.tile, self.tile, row * self.tile, col * self.tile))

        return (*(tuple(cut(row, col) for col in range(cols)) for row in range(rows)), ((whole,),))

    def patches(self, pixels: ByteArray) -> Patches:
        return merged_patches(normalised(pixels, self.mean, self.std), self.patch, self.merge)
