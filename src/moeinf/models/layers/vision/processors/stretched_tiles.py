"""Command A's image processor: a picture stretched over square tiles, and over one as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import OF_CLIP, check_common, colours_of
from moeinf.models.layers.vision.processors.square_tiles import SquareTiles, tiles_within
from moeinf.models.layers.vision.processors.tiled_pictures import tiles_for
from moeinf.types import PictureStep, PictureView, PictureViews


@dataclass(frozen=True, slots=True)
class StretchedTiles(SquareTiles):
    @staticmethod
    def parse(f: Fields, patch: int, merge: int, tile: int, tokens: int | None) -> StretchedTiles:
        """patch, merge, tile: the tower's; f, tokens: as of tiles_within. Raises UsageError."""
        check_common(f)
        f.only("do_normalize", True, None)
        f.only("min_patches", 1, None)
        f.only("patch_size", tile // (patch * merge), None)  # whose square is the number of a tile's tokens
        most = tiles_within(f, tile, patch * merge, tokens)
        published = f.count("max_patches", 12) if f.flag("crop_to_patches", True) else 1
        return StretchedTiles(patch, merge, 1, *colours_of(f, OF_CLIP), tile, min(most, published))

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
