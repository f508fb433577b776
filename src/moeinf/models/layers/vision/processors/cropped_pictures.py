"""Step 3.7's image processor: a picture as a whole, and square windows of one that is large or long."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.errors import UnsupportedModelError, UsageError
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    BILINEAR,
    MOST_TOKENS,
    OF_CLIP,
    Patches,
    check_common,
    colours_of,
    merged_patches,
    normalised,
)
from moeinf.types import ByteArray, PictureStep, PictureView, PictureViews

_THIN = (32, 4)  # a picture with a side of fewer pixels, and as many times as long, is filled up to a square


@dataclass(frozen=True, slots=True)
class CroppedPictures:
    patch: int
    unit: int
    whole: int  # pixels of a side of the picture as the tower sees it whole
    window: int  # and of a window
    longest: int  # pixels, to which a longer side is brought down
    most_windows: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def parse(f: Fields, patch: int, unit: int, tokens: int | None) -> CroppedPictures:
        """f: preprocessor_config.json; patch, unit: the tower's. tokens: the most that the user wants of a picture;
        None: MOST_TOKENS at most. Raises UsageError where that is less than those of the whole."""
        check_common(f, BILINEAR)
        f.only("vision_patch_size", patch, None)
        f.only("downsampler_stride", unit // patch, None)
        size = f.within("size")
        whole, window = size.count("height", 728), f.count("patch_size", 504)
        size.only("width", whole, None)
        if whole % unit or window % unit:
            raise UnsupportedModelError(f"{f.where}: views of {whole} and {window} pixels have no whole tokens")
        of_whole, of_window = (whole // unit) ** 2, (window // unit) ** 2
        if tokens is not None and tokens < of_whole:
            raise UsageError(f"--picture-tokens {tokens} is too few: a picture of this model has at least {of_whole}")
        most = max(0, (tokens or MOST_TOKENS) - of_whole) // of_window
        longest = f.count("max_image_size", 3024)
        return CroppedPictures(patch, unit, whole, window, longest, most, *colours_of(f, OF_CLIP))

    @property
    def most_tokens(self) -> int:
        return (self.whole // self.unit) ** 2 + self.most_windows * (self.window // self.unit) ** 2

    def views(self, height: int, width: int) -> PictureViews:
        """Windows in rows, and in a row of its own the whole."""
        front: PictureView = ()
        least, times = _THIN
        if min(height, width) < least and max(height, width) > times * min(height, width):
            height = width = max(height, width)
            front = (PictureStep("pad", height, width),)
        rows, size = self._windows(height, width)
        whole = PictureStep("bilinear", self.whole, self.whole)
        return (*(tuple((*front, *steps) for steps in row) for row in rows), ((*front, size, whole),))

    def _windows(self, height: int, width: int) -> tuple[list[list[PictureView]], PictureStep]:
        """The steps to each window, of a picture that is brought down until there are no more than is wanted; and the
        size to which the whole is brought first."""
        size = self._within(self.longest, height, width)
        for longest in range(self.longest, 0, -self.window):
            tall, wide = self._within(longest, height, width)
            side = self._side(tall, wide)
            if not side:
                break
            tall, wide = (self._snapped(each, side) for each in (tall, wide))
            rows, cols = max(1, tall // side), max(1, wide // side)
            if rows * cols <= self.most_windows:
                common = PictureStep("bilinear", tall, wide)
                cut = (min(side, tall), min(side, wide))
                seen = PictureStep("bilinear", self.window, self.window)
                return [
                    [(common, PictureStep("cut", *cut, row * side, col * side), seen) for col in range(cols)]
                    for row in range(rows)
                ], PictureStep("bilinear", *size)
        return [], PictureStep("bilinear", *size)

    @staticmethod
    def _within(longest: int, height: int, width: int) -> tuple[int, int]:
        if max(height, width) <= longest:
            return height, width
        scale = longest / max(height, width)
        return max(1, int(height * scale)), max(1, int(width * scale))

    def _side(self, height: int, width: int) -> int:
        """Of windows in a picture of this size; 0: there are none."""
        short, long = min(height, width), max(height, width)
        if long <= self.whole:
            return short if long / short > 1.5 else 0
        return min(short, self.window) if long / short > 4 else self.window

    @staticmethod
    def _snapped(length: int, side: int) -> int:
        """To whole windows, with one more for a rest of more than a fifth."""
        if length < side:
            return length
        return side * (length // side + (length % side > 0.2 * side))

    def patches(self, pixels: ByteArray) -> Patches:
        return merged_patches(normalised(pixels, self.mean, self.std), self.patch, 1)
