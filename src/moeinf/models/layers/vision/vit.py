"""Vision towers whose neighbouring patches are merged into tokens, each of which sees every other on its way.

Families differ in norms, MLPs, positions and names, which a `VitConfig` says, and in what merges the patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.layers.array_math import Array, joined
from moeinf.models.layers.attention.grouped import attention_shapes
from moeinf.models.layers.attention_config import (
    AttentionConfig,
    AttentionSite,
    HeadNorms,
    NormConfig,
    NormKind,
    Projections,
    Shapes,
    Sight,
    linear_shapes,
)
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import plain_rope
from moeinf.models.layers.vision.halving import halved, halving_shapes
from moeinf.models.layers.vision.image_processor import Patches
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.mergers import Merger
from moeinf.models.layers.vision.squares import in_squares
from moeinf.models.layers.vision.tower_modules import gated, norm_shapes, normed
from moeinf.models.layers.vision.vision import Part, Tower, attend_all, axial_frequencies, by_blocks, turned_by
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Activation, Float32Array, IntArray


@dataclass(frozen=True, slots=True)
class Cut:
    """How a picture is cut."""

    patch: int  # pixels of a side
    merge: int  # patches of a side of what becomes one token
    kernel: tuple[int, ...]  # what the embedding multiplies of a patch, in the shape that it is stored in
    whole: bool = True  # sides are of whole squares, whose patches follow one another; else they come row by row

    @staticmethod
    def film(patch: int, merge: int, frames: int) -> Cut:
        """Patches of equal frames."""
        return Cut(patch, merge, (3, frames, patch, patch))


@dataclass(frozen=True, slots=True)
class TowerMlp:
    """down(f(up(x))); with three names down(f(gate(x)) * up(x))."""

    names: tuple[str, ...]  # behind that of the block
    size: int
    activation: Activation = "gelu_tanh"
    biased: bool = True
    limit: float = 0.0  # of three names: silu takes at most this of the gate, and up(x) lies within it; 0: none
    fused: bool = False  # of two names: the first one's rows are those of silu's gate, then those of up


@dataclass(frozen=True, slots=True)
class VitNames:
    """What tensors are called; each begins with `prefix`."""

    prefix: str
    blocks: str = "blocks."
    attention: str = "attn."
    norms: tuple[str, str] = ("norm1", "norm2")
    patches: str = "patch_embed.proj"
    class_token: str | None = None  # rows behind the patches of a view, which the merger is not given
    class_tokens: int | None = None  # how many of these; None: one, in a tensor of one dimension
    scales: tuple[str, str] | None = None  # behind that of a block: vectors that multiply what its two parts add
    halvings: tuple[str, ...] = ()  # convolutions of 3 * 3 patches, in steps of 2, each to twice as many numbers


@dataclass(frozen=True, slots=True)
class VitConfig:
    attention: AttentionConfig
    depth: int
    out_hidden: int  # of the language model
    cut: Cut
    mlp: TowerMlp
    names: VitNames
    positions: LearntPositions | None = None
    front: NormConfig | None = None  # of embedded patches
    theta: float = 1e4
    biased_patches: bool = True
    placed: NormConfig | None = None  # of embedded patches with their learnt positions

    def block(self, number: int) -> str:
        return f"{self.names.prefix}{self.names.blocks}{number}."


def tower_attention(
    hidden: int,
    heads: int,
    eps: float,
    norm: NormKind = "layer",
    *,
    head_dim: int | None = None,
    biases: tuple[bool, bool] = (True, True),
    names: tuple[str | None, str] = ("qkv", "proj"),
    by_turns: bool = False,
    head_norms: HeadNorms | None = None,
    turned: bool = True,
) -> AttentionConfig:
    """biases: of queries, keys and values, and of the output; names: of their matrices, None for one each.
    turned: heads are, by places; else nothing but learnt positions tells these.

    With axes, the rope says itself which pairs turn by rows and which by columns, and how fast. Otherwise, with
    by_turns, pairs of neighbours turn by the column, the row, the column, ...; else pairs (i, i + half) turn by the
    row, those of the second half by the column. Raises UnsupportedModelError for heads that have no such pairs.
    """
    size = head_dim or hidden // heads
    if (head_dim is None and hidden % heads) or size % 4:
        raise UnsupportedModelError(f"config.json: a vision tower with heads of {head_dim or hidden / heads:g}")
    return AttentionConfig(
        hidden,
        heads,
        heads,
        size,
        eps,
        plain_rope(size, 1e4, by_turns) if turned else None,
        projections=Projections(bias=biases[0], output_bias=biases[1], fused=names[0], output=names[1]),
        sight=Sight(sees="all"),
        norm=norm,
        head_norms=head_norms,
    )


class MergingTower(Tower):
    """deep: what makes rows for the first layers of the language model, by the block in front of it."""

    attention: AttentionConfig

    def __init__(self, config: VitConfig, merger: Merger, deep: Mapping[int, Merger] | None = None) -> None:
        self._config, self._merger, self._deep = config, merger, deep or {}
        self.attention, self.deep, self.patch_numbers = config.attention, len(self._deep), prod(config.cut.kernel)
        self.shapes = self._shapes()

    def _shapes(self) -> Shapes:
        c, names, hidden, shapes = self._config, self._config.names, self.attention.hidden_size, Shapes()
        for i in range(c.depth):
            block = c.block(i)
            shapes |= attention_shapes(self.attention, block + names.attention)
            for name in names.norms:
                shapes |= norm_shapes(self._norm(block + name), hidden)
            *wide, down = (block + name for name in c.mlp.names)
            for name in wide:
                shapes |= linear_shapes(name, c.mlp.size << c.mlp.fused, hidden, biased=c.mlp.biased)
            shapes |= linear_shapes(down, hidden, c.mlp.size, biased=c.mlp.biased)
            shapes |= {block + name: (hidden,) for name in names.scales or ()}
        shapes |= halving_shapes([names.prefix + name for name in names.halvings], hidden)
        for merger in (self._merger, *self._deep.values()):
            shapes |= merger.shapes(hidden << len(names.halvings), c.cut.merge**2, c.out_hidden)
        patches = names.prefix + names.patches
        shapes |= {f"{patches}.weight": (hidden, *c.cut.kernel)}
        shapes |= {f"{patches}.bias": (hidden,)} if c.biased_patches else {}
        shapes |= norm_shapes(c.front, hidden) | norm_shapes(c.placed, hidden)
        if names.class_token is not None:
            rows = () if names.class_tokens is None else (names.class_tokens,)
            shapes[names.prefix + names.class_token] = (*rows, hidden)
        return shapes | ({} if c.positions is None else c.positions.shapes(hidden))

    def _norm(self, name: str) -> NormConfig:
        return NormConfig(f"{name}.weight", self.attention.norm_eps, self.attention.norm)

    def prepared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Convolutions whose steps are as long as their kernels, as matrices."""
        return {
            name: tensor if len(tensor.shape) < 3 else replace(tensor, shape=(tensor.shape[0], prod(tensor.shape[1:])))
            for name, tensor in tensors.items()
        }

    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        c, names, square = self._config, self._config.names, self._config.cut.merge**2
        first = part(f"{names.prefix}{names.patches}.")
        further = 0 if names.class_token is None else names.class_tokens or 1
        spans, end = list[slice](), 0
        for view in views:
            spans.append(slice(end, end + len(view.values) + further))
            end = spans[-1].stop
        first.begin_pass(end)
        math = first.weights.math
        x = self._embedded(part, first, views)
        turned = self._turned_views(first, views)
        cache, deep = Cache([], max(span.stop - span.start for span in spans)), list[Array]()
        for i in range(c.depth):
            self._block(part(c.block(i)), i, x, cache, list(zip(spans, turned, strict=True)))
            if i in self._deep:
                deep.append(self._deep[i].tokens(part, x, square))
        if further:
            x = joined(math, [x[span.start : span.stop - further] for span in spans])
        x = halved(part, [names.prefix + name for name in names.halvings], x, [view.grid for view in views])
        if not c.cut.whole:
            x = in_squares(math, x, [view.grid for view in views], c.cut.merge)
        return math.to_host(math.concatenate([self._merger.tokens(part, x, square), *deep], 1))

    def _embedded(self, part: Part, first: Layers, views: Sequence[Patches]) -> Array:
        """[rows of all views, hidden]: those of patches, and of the class token behind each view."""
        c, name, math = self._config, self._config.names.prefix + self._config.names.patches, first.weights.math
        embedding = first.weights.linear(f"{name}.weight", f"{name}.bias" if c.biased_patches else None)
        norm, own, places = normed(part, c.front), self._class(part), dict[tuple[int, int], Array]()
        found = list[Array]()
        for view in views:
            x = norm(embedding(math.of_host(view.values)))
            if c.positions is not None and view.grid not in places:
                places[view.grid] = c.positions.of_patches(part, *self._places(view.grid), view.grid)
            found += [x if c.positions is None else x + places[view.grid][: len(x)], *(() if own is None else (own,))]
            if own is not None and c.positions is not None and c.positions.last:
                found[-1] = own + places[view.grid][len(x) :]
        return normed(part, c.placed)(joined(math, found))

    def _class(self, part: Part) -> Array | None:
        """[class tokens, hidden]"""
        names = self._config.names
        if names.class_token is None:
            return None
        own = part(names.prefix + names.class_token).weights.vector(names.prefix + names.class_token)
        return own.reshape(-1, self.attention.hidden_size)

    def _places(self, grid: tuple[int, int]) -> tuple[IntArray, IntArray]:
        """Row and column of each patch: those that are merged follow one another."""
        m = self._config.cut.merge if self._config.cut.whole else 1
        rows, cols = (np.arange(count).reshape(-1, m) for count in grid)
        shape = (len(rows), len(cols), m, m)
        row = np.broadcast_to(rows[:, None, :, None], shape).reshape(-1)
        return row, np.broadcast_to(cols[None, :, None, :], shape).reshape(-1)

    def _turned_views(self, first: Layers, views: Sequence[Patches]) -> list[object]:
        """How the heads of each view are turned. With a class token, which is not, the others count from 1."""
        found = dict[tuple[int, int], object]()
        for view in views:
            if view.grid not in found:
                places = self._places(view.grid)
                if self._config.names.class_token is not None:
                    places = np.append(places[0] + 1, 0), np.append(places[1] + 1, 0)
                found[view.grid] = self._turned(first, *places)
        return [found[view.grid] for view in views]

    def _turned(self, first: Layers, row: IntArray, col: IntArray) -> object:
        frequencies, rope = axial_frequencies(self.attention.head_dim, self._config.theta), self.attention.rope
        if rope is None:
            nothing = np.empty((len(row), 0), np.float32)
            return first.angles(nothing, nothing)
        if rope.axes is not None:
            places = np.stack([np.zeros_like(row), row, col], 1)[:, rope.axes]
            angles = places.astype(np.float32, "C") * rope.frequencies
            return first.angles(np.cos(angles), np.sin(angles))
        if rope.interleaved:
            return turned_by(first, frequencies, col, row, by_turns=True)
        return turned_by(first, frequencies, row, col)

    def _block(self, part: Layers, number: int, x: Array, cache: Cache, views: Sequence[tuple[slice, object]]) -> None:
        """views: the rows of each, and how its heads are turned."""
        name, names, mlp = self._config.block(number), self._config.names, self._config.mlp
        behind = self._norm(name + names.norms[1])
        scales = None if names.scales is None else [part.weights.vector(name + each) for each in names.scales]
        self._attend(part, number, x, cache, views, None if scales is None else scales[0])
        inside = [f"{name}{each}" for each in mlp.names]
        of_first = None if mlp.limit or mlp.fused else mlp.activation
        first, *rest = (
            part.weights.linear(f"{each}.weight", f"{each}.bias" if mlp.biased else None, function)
            for each, function in zip(inside, (of_first, None, None), strict=False)
        )
        norm, down, math = part.weights.norm(behind), rest[-1], part.weights.math

        def inner(given: Array) -> Array:
            found = first(given)
            if mlp.fused:
                return math.silu(found[:, : mlp.size]) * found[:, mlp.size :]
            return found if len(rest) == 1 else gated(math, found, rest[0](given), mlp.limit)

        def block(rows: Array) -> Array:
            given = norm(rows)
            found = down(inner(given))
            return found if scales is None else found * scales[1]

        by_blocks(x, block)

    def _attend(
        self,
        part: Layers,
        number: int,
        x: Array,
        cache: Cache,
        views: Sequence[tuple[slice, object]],
        scale: Array | None,
    ) -> None:
        """x += attention(norm(x)) * scale, in the block of this number."""
        name, names = self._config.block(number), self._config.names
        site = AttentionSite(0, name + names.attention, self._norm(name + names.norms[0]).name)
        for rows, turned in views:
            if scale is None:
                attend_all(part, self.attention, site, x[rows], cache, turned)
                continue
            attended = x[rows] * 1.0
            attend_all(part, self.attention, replace(site, replaces=True), attended, cache, turned)
            x[rows] += attended * scale
