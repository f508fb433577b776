"""Nemotron 3 Omni's image processor: a picture is stretched to a grid near its own, of patches within bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import (
    MOST_TOKENS,
    OF_CLIP,
    Merging,
    WholePictures,
    check_common,
    check_shape,
    colours_of,
)

_OLD = {"norm_mean": "image_mean", "norm_std": "image_std"}  # what published settings call them


@dataclass(frozen=True, slots=True)
class BoundedGrids(Merging, WholePictures):
    least_patches: int
    most_patches: int

    @staticmethod
    def parse(f: Fields, patch: int, merge: int, tokens: int | None) -> BoundedGrids:
        """f: preprocessor_config.json; patch, merge: the tower's. tokens: the most that the user wants of a picture;
        None: MOST_TOKENS at most."""
        check_common(f)
        f.only("do_normalize", True, None)
        f.only("patch_size", patch, None)
        f.only("downsample_ratio", 1 / merge, None)
        f = f.replaced(**{new: f.get(new) or f.get(old) for old, new in _OLD.items()})
        patches = (tokens or MOST_TOKENS) * merge**2
        published = f.count("max_num_patches", 13312, 0) or patches  # 0: no bound
        most = patches if tokens else min(published, patches)
        least = min(f.count("min_num_patches", 1024), most)
        return BoundedGrids(patch, merge, 1, *colours_of(f, OF_CLIP), least, most)

    @property
    def most_tokens(self) -> int:
        return self.most_patches // self.merge**2

    def size(self, height: int, width: int) -> tuple[int, int]:
        check_shape(height, width)
        rows, cols = (round(side / self.patch + 0.5) for side in (height, width))
        scale = min(math.sqrt(self.most_patches / (rows * cols)), 1.0)
        rows, cols = max(1, math.floor(scale * rows)), max(1, math.floor(scale * cols))
        if rows * cols < self.least_patches < self.most_patches:
            scale = math.sqrt(self.least_patches / (rows * cols))
            rows, cols = math.ceil(scale * rows), math.ceil(scale * cols)
        rows = self._whole(rows, cols)
        cols = min(self._whole(cols, rows), self._most(rows))
        return min(rows, self._most(cols)) * self.patch, cols * self.patch

    def _whole(self, side: int, other: int) -> int:
        """In whole tokens: upwards where the bound allows it, else downwards."""
        up = math.ceil(side / self.merge) * self.merge
        return up if up * other <= self.most_patches else max(self.merge, side // self.merge * self.merge)

    def _most(self, other: int) -> int:
        """What the bound allows of a side; published code may go beyond it for a narrow picture."""
        return max(self.merge, self.most_patches // other // self.merge * self.merge)
