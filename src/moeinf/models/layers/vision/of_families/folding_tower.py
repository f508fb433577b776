"""A tower without attention, whose patches are tokens: matrices of ever larger squares (hMLP, arXiv 2203.09795).

Each layer joins the numbers of squares of places, and of frames, and multiplies them; a norm and gelu follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.vision.image_processor import Patches
from moeinf.models.layers.vision.vision import Part, Tower
from moeinf.types import Float32Array

_PATCHES = 32  # that go through all layers together: bounds what is held of them
_EPS = 1e-6
_ROUNDED = 64  # what numbers of a place are multiples of
Scale = tuple[int, int, int]  # frames, side of a square, numbers of a place


@dataclass(frozen=True, slots=True)
class FoldingConfig:
    patch: int
    frames: int
    layers: int
    out_hidden: int
    prefix: str

    @property
    def scales(self) -> list[Scale]:
        """In front of each layer, and behind the last one."""
        known = _scales(self.patch, self.frames)
        sizes = np.log(np.array([frames * side * side for frames, side, _ in known], np.float32))
        wanted = np.linspace(0, np.log(3 * self.frames * self.patch**2), self.layers + 1, dtype=np.float32)
        costs, rows = np.abs(wanted[:, None] - sizes), np.arange(self.layers + 1)
        if self.layers >= len(known):
            chosen = costs.argmin(1).tolist()
        else:
            chosen = [*min(combinations(range(len(known)), len(rows)), key=lambda each: costs[rows, list(each)].sum())]
        return [known[i] for i in (0, *chosen[1:-1], len(known) - 1)]


def _scales(patch: int, frames: int) -> list[Scale]:
    """Those that layers may have: first squares become larger, then there are more frames, by prime factors."""
    found: list[Scale] = [(1, 1, 3)]
    side, count = 1, 1
    for factor in _factors(patch):
        side *= factor
        found.append((1, side, -(-3 * side * side // _ROUNDED) * _ROUNDED))
    for factor in _factors(frames):
        count *= factor
        found.append((count, side, -(-3 * side * side * count // _ROUNDED) * _ROUNDED))
    return found


def _factors(number: int) -> list[int]:
    """Primes, the largest first."""
    found, prime = list[int](), 2
    while number > 1:
        if number % prime:
            prime += 1
        else:
            found, number = [prime, *found], number // prime
    return found


class FoldingTower(Tower):
    attention = None

    def __init__(self, config: FoldingConfig) -> None:
        self._config, self.patch_numbers = config, 3 * config.patch**2
        self._folds = [(b[0] // a[0], b[1] // a[1], a[2], b[2]) for a, b in pairwise(config.scales)]
        self.shapes = self._shapes()
        frames, side, self.held = config.frames, config.patch, 0
        for deep, square, _, out in self._folds:
            frames, side = frames // deep, side // square
            self.held = max(self.held, 4 * _PATCHES * frames * side**2 * out, 4 * _PATCHES * 3 * config.patch**2)

    def _shapes(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for i, (frames, side, wide, out) in enumerate(self._folds):
            last = i == len(self._folds) - 1
            shapes[f"{self._linear(i)}weight"] = (c.out_hidden if last else out, frames * side * side * wide)
            shapes |= {} if last else {f"{self._norm(i)}weight": (out,)}
        return shapes | {f"{c.prefix}final_norm.weight": (c.out_hidden,)}

    def _linear(self, layer: int) -> str:
        return f"{self._config.prefix}layers.linear_{layer}."

    def _norm(self, layer: int) -> str:
        return f"{self._config.prefix}layers.norm_{layer}."

    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        [view] = views
        c, last, steps = self._config, len(self._folds) - 1, []
        for i, (frames, side, _, _) in enumerate(self._folds):
            linear = part(self._linear(i)).weights.linear(f"{self._linear(i)}weight")
            name = f"{c.prefix}final_norm." if i == last else self._norm(i)
            weights = part(name).weights
            steps.append((frames, side, linear, weights.norm(NormConfig(f"{name}weight", _EPS)), weights.math))
        found = list[Float32Array]()
        for start in range(0, len(view.values), _PATCHES):
            x = view.values[start : start + _PATCHES].reshape(-1, 1, c.patch, c.patch, 3).repeat(c.frames, 1)
            for i, (frames, side, linear, norm, math) in enumerate(steps):
                x = folded(x, frames, side)
                made = norm(linear(math.of_host(x.reshape(-1, x.shape[-1]))))
                made = made if i == last else math.gelu(made)
                x = math.to_host(made).reshape(*x.shape[:-1], made.shape[-1])
            found.append(x.reshape(len(x), -1))
        return np.concatenate(found)


def folded(x: Float32Array, frames: int, side: int) -> Float32Array:
    """[patches, frames, rows, columns, numbers], of which so many frames and squares of places become one place."""
    count, deep, rows, cols, width = x.shape
    cut = x.reshape(count, deep // frames, frames, rows // side, side, cols // side, side, width)
    joined = np.ascontiguousarray(cut.transpose(0, 1, 3, 5, 2, 4, 6, 7))
    return joined.reshape(count, deep // frames, rows // side, cols // side, -1)
