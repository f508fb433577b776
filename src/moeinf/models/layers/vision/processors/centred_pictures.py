"""DeepSeek-V4.1's image processor: a picture keeps its shape, and grey fills it up on both sides to whole patches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeinf.errors import UsageError
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    MOST_TOKENS,
    Patches,
    check_common,
    check_shape,
    merged_patches,
    normalised,
)
from moeinf.types import ByteArray, PictureStep, PictureViews

_GREY = 127
_HALVES = ((0.5,) * 3, (0.5,) * 3)
_FEWEST = 4  # tokens of a picture: one of patches, one behind its row, and one in front and behind all


@dataclass(frozen=True, slots=True)
class CentredPictures:
    patch: int
    merge: int  # patches of a side of what becomes one token
    least_pixels: int
    most_tokens: int  # with those behind rows, in front and behind
    widest: float | None  # times the height; a picture that is wider is squeezed to this

    @staticmethod
    def parse(v: Fields, f: Fields, patch: int, merge: int, tokens: int | None) -> CentredPictures:
        """v: vision_config, which has the bounds; f: preprocessor_config.json, which checkpoints need not have. tokens:
        the most that the user wants of a picture. Raises UsageError where that is less than any picture has."""
        check_common(f)
        f.only("do_normalize", True, None)
        for name, halves in zip(("image_mean", "image_std"), _HALVES, strict=True):
            f.only(name, list(halves), None)
        if tokens is not None and tokens < _FEWEST:
            raise UsageError(f"--picture-tokens {tokens} is too few: a picture of this model has at least {_FEWEST}")
        widest = None if v.get("max_wh_ratio") is None else v.number("max_wh_ratio")
        most = tokens or min(v.count("max_image_tokens", 1024, _FEWEST), MOST_TOKENS)
        return CentredPictures(patch, merge, v.count("min_pixels", 295936), most, widest)

    @property
    def unit(self) -> int:
        return self.patch * self.merge

    def views(self, height: int, width: int) -> PictureViews:
        check_shape(height, width)
        tall, wide = self._filled(height, width)
        if self.widest is not None and width >= self.widest * height:
            return (((PictureStep("bicubic", tall, wide),),),)
        rows, cols = tall, wide  # of which none is left out, as published code may do where a picture is a line
        if width / height > wide / tall:
            rows = max(1, round(height / width * wide))
        elif width / height < wide / tall:
            cols = max(1, round(width / height * tall))
        pad = PictureStep("pad", tall, wide, round((tall - rows) / 2), round((wide - cols) / 2), _GREY)
        return (((PictureStep("bicubic", rows, cols), pad),),)

    def _filled(self, height: float, width: float) -> tuple[int, int]:
        """The sides with what fills them up, of whole patches."""
        if self.widest is not None:
            width = min(width, height * self.widest)
        if width * height < self.least_pixels:
            scale = (self.least_pixels / (width * height)) ** 0.5
            width, height = int(width * scale), int(height * scale)
        tall, wide = (math.ceil(side / self.patch) * self.patch for side in (height, width))
        rows, cols = (math.ceil(side / self.unit) for side in (tall, wide))
        return (tall, wide) if rows * (cols + 1) + 2 <= self.most_tokens else self._within(height, width)

    def _within(self, height: float, width: float) -> tuple[int, int]:
        """As large as the number of tokens allows, with one behind each row."""
        shape = height / width
        cols = math.sqrt((self.most_tokens - 2) / shape + 0.25) - 0.5
        if cols < 1:
            return (self.most_tokens - 2) // 2 * self.unit, self.unit
        if cols * shape < 1:
            return self.unit, (self.most_tokens - 3) * self.unit
        scale = min(math.floor(cols) * self.unit / width, math.floor(cols * shape) * self.unit / height)
        return (
            math.floor(height * scale / self.patch) * self.patch,
            math.floor(width * scale / self.patch) * self.patch,
        )

    def patches(self, pixels: ByteArray) -> Patches:
        return merged_patches(normalised(pixels, *_HALVES), self.patch, 1)
