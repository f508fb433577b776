"""GLM-5.3's image processor: a picture is made larger only where it would have too few tokens; black fills it up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    MOST_TOKENS,
    OF_CLIP,
    Merging,
    check_common,
    check_shape,
    colours_of,
)
from moeinf.types import PictureStep, PictureViews


@dataclass(frozen=True, slots=True)
class FilledPictures(Merging):
    least_tokens: int
    most_tokens: int

    @staticmethod
    def parse(f: Fields, patch: int, merge: int, frames: int, tokens: int | None) -> FilledPictures:
        """f: preprocessor_config.json; patch, merge, frames: the tower's. tokens: the most that the user wants of a
        picture; None: MOST_TOKENS at most."""
        check_common(f)
        f.only("do_normalize", True, None)
        f.only("patch_expand_factor", 1, None)
        for name, value in (("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", frames)):
            f.only(name, value, None)
        most = tokens or min(f.count("max_image_tokens", 8000), MOST_TOKENS)
        least = min(f.count("min_image_tokens", 16), most)
        return FilledPictures(patch, merge, frames, *colours_of(f, OF_CLIP), least, most)

    def views(self, height: int, width: int) -> PictureViews:
        check_shape(height, width)
        filled = self._filled(height, width)
        scale = min(filled[0] / height, filled[1] / width)
        if height * width >= self.least_tokens * self.unit**2:
            scale = min(1.0, scale)
        sides = (
            max(1, min(most, math.floor(side * scale))) for side, most in zip((height, width), filled, strict=True)
        )
        return (((PictureStep("bicubic", *sides), PictureStep("pad", *filled)),),)

    def _filled(self, height: int, width: int) -> tuple[int, int]:
        """The sides with what fills them up: of whole tokens, of which there are neither too few nor too many."""
        rows, cols = self._tokens(height), self._tokens(width)
        if rows * cols < self.least_tokens:
            scale = math.sqrt(self.least_tokens * self.unit**2 / (height * width))
            rows, cols = (self._tokens(math.ceil(side * scale)) for side in (height, width))
        if rows * cols > self.most_tokens:
            rows, cols = self._within(height, width)
        return rows * self.unit, cols * self.unit

    def _within(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens at the largest height, as halving finds it, at which there are not too many."""
        low, high, found = 1, height, (1, 1)
        while low <= high:
            tall = (low + high) // 2
            rows, cols = self._tokens(tall), self._tokens(math.floor(width * tall / height))
            if rows * cols <= self.most_tokens:
                low, found = tall + 1, (rows, cols)
            else:
                high = tall - 1
        return found

    def _tokens(self, pixels: int) -> int:
        """Of a side."""
        return max(1, math.ceil(pixels / self.unit))
