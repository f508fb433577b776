"""Llama 4's image processor: a picture in square tiles, as little smaller as their number allows, and as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import BILINEAR, Patches, check_common, colours_of, merged_patches
from moeinf.models.layers.vision.processors.square_tiles import SquareTiles, tiles_within
from moeinf.types import ByteArray, Float32Array, PictureStep, PictureView, PictureViews

_HALVES = ((0.5,) * 3, (0.5,) * 3)


@dataclass(frozen=True, slots=True)
class TiledPictures(SquareTiles):
    @staticmethod
    def parse(f: Fields, patch: int, merge: int, tile: int, tokens: int | None) -> TiledPictures:
        """patch, merge, tile: the tower's; f, tokens: as of tiles_within. Raises UsageError."""
        check_common(f, BILINEAR)
        f.only("resize_to_max_canvas", False, None)
        most = tiles_within(f, tile, patch * merge, tokens)
        if tokens is None:
            most = min(most, f.count("max_patches", 16))
        return TiledPictures(patch, merge, 1, *colours_of(f, _HALVES), tile, most)

    def views(self, height: int, width: int) -> PictureViews:
        """Tiles in rows, and in a row of its own the whole, unless it is the only tile."""
        rows, cols = tiles_for(height, width, self.tile, self.most_tiles, np.float32)
        canvas = PictureStep("pad", rows * self.tile, cols * self.tile)
        common = (PictureStep("bilinear", *self._size(height, width, canvas)), canvas)
        if rows * cols == 1:
            return ((common,),)

        def cut(row: int, col: int) -> PictureView:
            return (*common, PictureStep("cut", self.tile, self.tile, row * self.tile, col * self.tile))

        whole = PictureStep("bilinear", self.tile, self.tile)
        return (*(tuple(cut(row, col) for col in range(cols)) for row in range(rows)), ((whole,),))

    def _size(self, height: int, width: int, canvas: PictureStep) -> tuple[int, int]:
        """To which a picture is resized: to no more than it has, unless it is smaller than a tile."""
        tall, wide = (
            min(max(side, self.tile), most) for side, most in ((height, canvas.height), (width, canvas.width))
        )
        by_width, by_height = wide / width, tall / height
        if by_width < by_height:
            return max(1, min(math.floor(height * by_width), tall)), wide
        return tall, max(1, min(math.floor(width * by_height), wide))

    def patches(self, pixels: ByteArray) -> Patches:
        return merged_patches(self.colours(pixels), self.patch, self.merge)

    def colours(self, pixels: ByteArray) -> Float32Array:
        """[height, width, 3], rounded to bfloat16 at each step, as the published code does."""
        values = _rounded(pixels.astype(np.float32) * np.float32(1 / 255))
        values = _rounded(values - _rounded(np.array(self.mean, np.float32)))
        return _rounded(values / _rounded(np.array(self.std, np.float32)))


def _rounded(values: Float32Array) -> Float32Array:
    """To the nearest bfloat16, of two the even one."""
    bits = values.view(np.uint32)
    found: Float32Array = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return found


def tiles_for(height: int, width: int, tile: int, most: int, number: type[np.floating]) -> tuple[int, int]:
    """Rows and columns of tiles: of those that need not make the picture smaller, what it fills best; else those that
    make it smaller by the least. Of equal ones, the fewest. number: in which published code compares."""
    known = [(rows, cols) for rows in range(1, most + 1) for cols in range(1, most // rows + 1)]
    scales = {
        each: min(number(each[0] * tile) / number(height), number(each[1] * tile) / number(width)) for each in known
    }
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    return min((each for each in known if scales[each] == chosen), key=math.prod)
