"""The arithmetic of image processors: to which size a picture is brought, and how its pixels become patches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf.errors import UsageError
from moeinf.models.fields import Fields
from moeinf.types import ByteArray, Float32Array, JsonMapping, PictureStep, PictureViews

FILES = ("preprocessor_config.json", "processor_config.json")  # that may hold the settings
LANCZOS, BILINEAR, BICUBIC = 1, 2, 3  # as Pillow numbers them
MOST_TOKENS = 1024  # of a picture, where neither its checkpoint nor the user has a lower bound
Colours = tuple[tuple[float, ...], tuple[float, ...]]
_MOST_SKEWED = 200  # times that one side may be as long as the other


@dataclass(frozen=True, slots=True)
class Patches:
    """Of one view of a picture, in the order in which the tower wants them."""

    values: Float32Array  # [rows * cols, numbers of a patch]
    grid: tuple[int, int]  # rows and columns


class ImageProcessor(Protocol):
    """What a checkpoint's image processor does."""

    @property
    def unit(self) -> int:
        """Pixels of a side of the square that becomes one token."""
        ...

    @property
    def most_tokens(self) -> int:
        """Of one picture."""
        ...

    def views(self, height: int, width: int) -> PictureViews:
        """What a tower is shown of a picture: the sides of each view are whole units, or whole patches where the
        tower takes less than whole tokens at the edges.

        Raises UsageError for a picture that is too narrow.
        """
        ...

    def patches(self, pixels: ByteArray) -> Patches:
        """pixels [height, width, 3]: of one of the views."""
        ...


class WholePictures(ABC):
    """Image processors that show all of a picture at once."""

    __slots__ = ()

    @abstractmethod
    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which a picture is resized, whole units. Raises UsageError for one that is too narrow."""

    def views(self, height: int, width: int) -> PictureViews:
        return (((PictureStep("bicubic", *self.size(height, width)),),),)


@dataclass(frozen=True, slots=True)
class Merging:
    """What an image processor makes of pixels: patches, of which those that make one token follow one another."""

    patch: int
    merge: int  # patches of a side of what becomes one token
    frames: int  # equal ones, of which a picture is a film
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def unit(self) -> int:
        return self.patch * self.merge

    def patches(self, pixels: ByteArray) -> Patches:
        return merged_patches(normalised(pixels, self.mean, self.std), self.patch, self.merge, self.frames)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What settings mean that say nothing of it."""

    least: int = 1 << 16  # pixels
    most: int = 1 << 24
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


OF_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))  # means and deviations


@dataclass(frozen=True, slots=True)
class MergedPatches(Merging, WholePictures):
    """Qwen2-VL's image processor and its successors': sides to the nearest unit, within bounds of the area.

    A picture is a film of `frames` equal frames; patches that make one token follow one another.
    """

    min_pixels: int
    max_pixels: int
    of_film: bool = False  # bounds are of all frames, and a side below a unit is made one first (GLM-4.1V)

    @staticmethod
    def parse(
        f: Fields,
        patch: int,
        merge: int,
        frames: int,
        tokens: int | None,
        default: Defaults = Defaults(),
        *,
        of_film: bool = False,
    ) -> MergedPatches:
        """f: preprocessor_config.json; patch, merge, frames: the tower's. tokens: the most that the user wants of a
        picture; None: MOST_TOKENS at most."""
        check_common(f)
        f.only("do_normalize", True, None)
        for name, value in (("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", frames)):
            f.only(name, value, None)
        size, unit, counted = f.within("size"), patch * merge, frames if of_film else 1
        least = -(-f.count("min_pixels", size.count("shortest_edge", default.least)) // counted)
        most = f.count("max_pixels", size.count("longest_edge", default.most)) // counted
        bound = (tokens or MOST_TOKENS) * unit * unit
        most = bound if tokens else min(most, max(bound, least))
        colours = colours_of(f, (default.mean, default.std))
        return MergedPatches(patch, merge, frames, *colours, min(least, most), most, of_film)

    @property
    def most_tokens(self) -> int:
        return self.max_pixels // self.unit**2

    def size(self, height: int, width: int) -> tuple[int, int]:
        unit = self.unit
        if self.of_film and min(height, width) < unit:
            factor = max(unit / height, unit / width)
            height, width = int(height * factor), int(width * factor)
        check_shape(height, width)
        sides = (height, width)
        found = [round(side / unit) * unit for side in sides]
        if math.prod(found) > self.max_pixels:
            factor = math.sqrt(height * width / self.max_pixels)
            found = [max(unit, math.floor(side / factor / unit) * unit) for side in sides]
        elif math.prod(found) < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (height * width))
            found = [math.ceil(side * factor / unit) * unit for side in sides]
        return found[0], found[1]


@dataclass(frozen=True, slots=True)
class LongestEdge(Merging, WholePictures):
    """Pixtral's image processor: a longer side is brought down to a bound, and both are filled up to whole units."""

    longest: int  # pixels

    @staticmethod
    def parse(f: Fields, patch: int, merge: int, tokens: int | None) -> LongestEdge:
        """f: preprocessor_config.json; patch, merge: the tower's. tokens: the most that the user wants of a picture;
        None: MOST_TOKENS at most."""
        check_common(f)
        f.only("do_pad", True, None)
        f.only("patch_size", patch, {"height": patch, "width": patch}, patch * merge, None)
        size = f.within("size")
        size.refuse_others("longest_edge")
        bound = math.isqrt(tokens or MOST_TOKENS) * patch * merge
        return LongestEdge(patch, merge, 1, *colours_of(f, OF_CLIP), min(size.count("longest_edge", 1024), bound))

    @property
    def most_tokens(self) -> int:
        return math.ceil(self.longest / self.unit) ** 2

    def size(self, height: int, width: int) -> tuple[int, int]:
        check_shape(height, width)
        ratio = max(1.0, height / self.longest, width / self.longest)
        if ratio > 1:
            height, width = (max(1, math.floor(side / ratio)) for side in (height, width))
        return math.ceil(height / self.unit) * self.unit, math.ceil(width / self.unit) * self.unit


@dataclass(frozen=True, slots=True)
class PaddedPatches(Merging):
    """Kimi K2.5's image processor: never larger than the picture is; black fills up the last tokens.

    Where these would be too many with what fills them, the picture is made smaller yet.
    """

    most_tokens: int
    most_side: int  # patches

    @staticmethod
    def parse(f: Fields, patch: int, merge: int, tokens: int | None) -> PaddedPatches:
        """f: of preprocessor_config.json, as published or as transformers saves it; patch, merge: the tower's. tokens:
        the most that the user wants of a picture; None: MOST_TOKENS at most."""
        check_common(f)
        f.only("do_normalize", True, None)
        if f.get("media_proc_cfg") is not None:
            f = f.within("media_proc_cfg")
            f.only("merge_kernel_size", merge, None)
            f.only("fixed_output_tokens", None)
            patches, side = f.count("in_patch_limit", 16384), f.count("patch_limit_on_one_side", 512)
        else:
            f.only("merge_size", merge, None)
            patches, side = f.count("max_patches", 16384), f.within("size").count("max_height", 512)
        f.only("patch_size", patch, None)
        most = tokens or min(max(1, patches // merge**2), MOST_TOKENS)
        return PaddedPatches(patch, merge, 1, *colours_of(f, ((0.5,) * 3, (0.5,) * 3)), most, side)

    def views(self, height: int, width: int) -> PictureViews:
        check_shape(height, width)
        bound: float = self.most_tokens * self.merge**2
        while True:
            sides = self._within(height, width, bound)
            filled = [math.ceil(side / self.unit) * self.unit for side in sides]
            count = math.prod(filled) // self.unit**2
            if count <= self.most_tokens:
                return (((PictureStep("bicubic", *sides), PictureStep("pad", *filled)),),)
            bound *= 0.99 * self.most_tokens / count

    def _within(self, height: int, width: int, most_patches: float) -> tuple[int, int]:
        sides, longest = (height, width), self.most_side * self.patch
        count = math.prod(max(1, side // self.patch) for side in sides)
        factor = min(1.0, math.sqrt(most_patches / count), *(longest / side for side in sides))
        tall, wide = (min(max(1, int(side * factor)), longest) for side in sides)
        return tall, wide


@dataclass(frozen=True, slots=True)
class PooledPatches(WholePictures):
    """Gemma 4's image processor: as large as a number of patches allows, sides cut down to whole units."""

    patch: int
    pool: int  # patches of a side of what becomes one token
    most_tokens: int

    @staticmethod
    def parse(f: Fields, patch: int, pool: int, tokens: int | None) -> PooledPatches:
        """f: of processor_config.json; patch, pool: the tower's. tokens: the most that the user wants of a picture."""
        check_common(f)
        f.only("patch_size", patch, None)
        f.only("pooling_kernel_size", pool, None)
        return PooledPatches(patch, pool, tokens or f.count("max_soft_tokens", 280))

    @property
    def unit(self) -> int:
        return self.patch * self.pool

    def size(self, height: int, width: int) -> tuple[int, int]:
        check_shape(height, width)
        unit, area = self.unit, self.most_tokens * self.unit**2
        factor = math.sqrt(area / (height * width))
        tall, wide = (math.floor(factor * side / unit) * unit for side in (height, width))
        longest = self.most_tokens * unit
        if not tall and not wide:
            raise UsageError("the picture would have no token: raise --picture-tokens")
        if not tall:
            tall, wide = unit, min(width // height * unit, longest)
        elif not wide:
            tall, wide = min(height // width * unit, longest), unit
        return tall, wide

    def patches(self, pixels: ByteArray) -> Patches:
        values = pixels.astype(np.float32) * np.float32(1 / 255)
        rows, cols = pixels.shape[0] // self.patch, pixels.shape[1] // self.patch
        cut = values.reshape(rows, self.patch, cols, self.patch, 3).transpose(0, 2, 1, 3, 4)
        return Patches(cut.reshape(rows * cols, -1), (rows, cols))


def settings_of(files: JsonMapping) -> Fields:
    """The settings of a checkpoint's image processor, from either of the files that may have them; else none.

    files: the objects in preprocessor_config.json and processor_config.json, where they are. The latter counts where
    both have settings, as in transformers.
    """
    own, whole = FILES
    if files.get(own) and not (files.get(whole) or {}).get("image_processor"):
        return Fields(files[own], own)
    return Fields(files.get(whole) or {}, whole).within("image_processor")


def colours_of(f: Fields, default: Colours) -> Colours:
    """Means and deviations of the three colours, from 0 to 1."""
    mean, std = (
        tuple(f.numbers(name, 3, zero=name == "image_mean")) if f.get(name) is not None else each
        for name, each in zip(("image_mean", "image_std"), default, strict=True)
    )
    return mean, std


def normalised(pixels: ByteArray, mean: Sequence[float], std: Sequence[float]) -> Float32Array:
    means, deviations = (np.array(each, np.float32) for each in (mean, std))
    values: Float32Array = (pixels.astype(np.float32) * np.float32(1 / 255) - means) / deviations
    return values


def merged_patches(values: Float32Array, patch: int, merge: int, frames: int = 1) -> Patches:
    """values [height, width, 3], cut into patches, each by colours, frames (which are equal), rows and columns.

    Those of a square of merge * merge follow one another.
    """
    rows, cols = values.shape[0] // patch, values.shape[1] // patch
    cut = values.reshape(rows // merge, merge, patch, cols // merge, merge, patch, 3)
    ordered = cut.transpose(0, 3, 1, 4, 6, 2, 5)  # block row, block column, row, column, channel, and the patch
    film = np.repeat(ordered[:, :, :, :, :, None], frames, 5)
    return Patches(film.reshape(rows * cols, -1), (rows, cols))


def check_common(f: Fields, resample: int = BICUBIC) -> None:
    for name in ("do_resize", "do_rescale", "do_convert_rgb"):
        f.only(name, True, None)
    f.only("resample", resample, None)
    f.only("rescale_factor", 1 / 255, None)


def check_shape(height: int, width: int) -> None:
    if max(height, width) > _MOST_SKEWED * min(height, width):
        raise UsageError(f"a picture of {width} x {height} pixels is too narrow: cut it to less than 200 to 1")
