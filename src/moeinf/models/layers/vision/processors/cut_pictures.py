"""Inkling's image processor: a picture is cut into patches as large as it is, or twice as large."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moeinf.errors import UsageError
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    LANCZOS,
    MOST_TOKENS,
    OF_CLIP,
    Patches,
    check_shape,
    colours_of,
    normalised,
)
from moeinf.types import ByteArray, Float32Array, PictureStep, PictureViews

_FILLING = np.float32(-1 / 255)  # of what a picture lacks of the last patches, where its pixels are from 0 to 1
_FEWEST = 2  # tokens: a column of patches is added to a whole number of them


@dataclass(frozen=True, slots=True)
class CutPictures:
    patch: int
    factor: float  # by which a picture is made larger
    longest: int | None  # pixels of a side, beyond which no picture is made larger
    most_tokens: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def parse(f: Fields, patch: int, tokens: int | None) -> CutPictures:
        """f: preprocessor_config.json; patch: the tower's. tokens: the most that the user wants of a picture; None:
        MOST_TOKENS at most. Raises UsageError where that is less than any picture has."""
        for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            f.only(name, True, None)
        f.only("resample", LANCZOS, None)
        f.only("rescale_factor", 1 / 255, None)
        for name in ("height", "width"):
            f.within("size").only(name, patch, None)
        if tokens is not None and tokens < _FEWEST:
            raise UsageError(f"--picture-tokens {tokens} is too few: a picture of this model may have {_FEWEST}")
        factor = f.number("rescale_image_frac", 2.0)
        name = "rescale_image_max_upscaled_long_edge"
        longest = None if name in f and f.get(name) is None else f.count(name, 2048)
        return CutPictures(patch, factor, longest, tokens or MOST_TOKENS, *colours_of(f, OF_CLIP))

    @property
    def unit(self) -> int:
        return self.patch

    def views(self, height: int, width: int) -> PictureViews:
        """Pictures are made smaller until they have no more tokens than are wanted."""
        check_shape(height, width)
        long = max(height, width)
        edge = long * self.factor
        if self.longest is not None:
            edge = min(edge, max(self.longest, long))
        while True:
            tall, wide = (max(1, math.floor(side * (edge / long) + 0.5)) for side in (height, width))
            count = -(-tall // self.patch) * (wide // self.patch + 1)
            if count <= self.most_tokens:
                break
            edge *= min(0.99, math.sqrt(self.most_tokens / count))
        return (((PictureStep("lanczos", tall, wide), PictureStep("pad", tall, wide + 1)),),)

    def patches(self, pixels: ByteArray) -> Patches:
        """pixels [height, width + 1, 3], the last column of which only says that patches go on behind the picture."""
        values, patch = normalised(pixels[:, :-1], self.mean, self.std), self.patch
        rows, cols = -(-pixels.shape[0] // patch), -(-pixels.shape[1] // patch)
        mean, std = (np.array(each, np.float32) for each in (self.mean, self.std))
        canvas: Float32Array = np.empty((rows * patch, cols * patch, 3), np.float32)
        canvas[:] = (_FILLING - mean) / std
        canvas[: values.shape[0], : values.shape[1]] = values
        cut = canvas.reshape(rows, patch, cols, patch, 3).transpose(0, 2, 1, 3, 4)
        return Patches(cut.reshape(rows * cols, -1), (rows, cols))
