"""Muse Spark's image processor: of the grids of tokens beside a picture's own, it takes that which is most like it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    LANCZOS,
    MOST_TOKENS,
    Merging,
    Patches,
    WholePictures,
    check_common,
    check_shape,
    colours_of,
    merged_patches,
    normalised,
)
from moeinf.types import ByteArray, PictureStep, PictureViews


@dataclass(frozen=True, slots=True)
class ShapedPictures(Merging, WholePictures):
    most_tokens: int

    @staticmethod
    def parse(f: Fields, patch: int, merge: int, frames: int, tokens: int | None) -> ShapedPictures:
        """f: preprocessor_config.json; patch, merge, frames: the tower's. tokens: the most that the user wants of a
        picture; None: MOST_TOKENS at most."""
        check_common(f, LANCZOS)
        f.fixed(do_normalize=True, patch_size=patch, merge_size=merge, temporal_patch_size=frames)
        most = tokens or min(f.count("max_image_tokens", 4096), MOST_TOKENS)
        return ShapedPictures(patch, merge, frames, *colours_of(f, ((0.5,) * 3, (0.5,) * 3)), most)

    def views(self, height: int, width: int) -> PictureViews:
        return (((PictureStep("lanczos", *self.size(height, width)),),),)

    def size(self, height: int, width: int) -> tuple[int, int]:
        check_shape(height, width)
        rows, cols = height / self.unit, width / self.unit
        if rows * cols > self.most_tokens:
            ratio = cols / rows
            rows = (self.most_tokens / ratio) ** 0.5
            cols = rows * ratio
        near = set(itertools.product(*((math.floor(side), math.ceil(side)) for side in (rows, cols))))
        grids = [grid for grid in near if 0 < math.prod(grid) <= self.most_tokens]
        if not grids:  # of a narrow picture, for which published code goes beyond the bound
            grids = [(1, self.most_tokens) if width > height else (self.most_tokens, 1)]
        tall, wide = min(grids, key=lambda grid: abs(grid[0] / grid[1] - height / width))  # of equals the set's first
        return tall * self.unit, wide * self.unit

    def patches(self, pixels: ByteArray) -> Patches:
        found = merged_patches(normalised(pixels, self.mean, self.std), self.patch, self.merge)
        return Patches(np.tile(found.values, (1, self.frames)), found.grid)
