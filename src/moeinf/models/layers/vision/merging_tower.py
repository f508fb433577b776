"""The vision tower of Qwen3.5 and its kin: a ViT whose neighbouring patches are merged into tokens (arXiv 2511.21631).

Learnt positions of a square grid are interpolated to the picture's, and heads turn by row and column. Qwen3-VL's also
gives what it has behind some of its blocks to the first layers of the language model (deepstack, arXiv 2406.04334).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt, prod

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention.grouped import attention_shapes
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Projections, Shapes, Sight
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import Rope, plain_rope, rope_fields
from moeinf.models.layers.vision.image_processor import MergedPatches, Patches
from moeinf.models.layers.vision.vision import Part, Tower, Vision, attend_all, axial_frequencies, by_blocks, turned_by
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array, JsonObject

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class MergingConfig:
    depth: int
    hidden: int
    heads: int
    intermediate: int
    out_hidden: int
    patch: int
    merge: int
    frames: int
    side: int  # of the square grid of learnt positions
    theta: float
    deep: tuple[int, ...] = ()  # the blocks behind which there are rows for a layer of the language model each

    @staticmethod
    def parse(f: Fields, out_hidden: int, most_deep: int = 0) -> MergingConfig:
        """f: vision_config. most_deep: layers of the language model that may be given rows."""
        f.only("hidden_act", "gelu_pytorch_tanh", None)
        f.only("in_channels", 3, None)
        f.only("out_hidden_size", out_hidden)
        places = f.count("num_position_embeddings", 2304)
        if isqrt(places) ** 2 != places:
            raise UnsupportedModelError(f"{f.where}: num_position_embeddings {places} is no square")
        rope = f.within("rope_parameters")
        rope.only("rope_type", "axial", "default", None)
        depth, deep = f.count("depth", 27, maximum=MOST_LAYERS), f.get("deepstack_visual_indexes") or []
        sound = isinstance(deep, list) and all(type(each) is int and 0 <= each < depth for each in deep)
        if not sound or sorted({*deep}) != deep or len(deep) > most_deep:
            raise UnsupportedModelError(f"{f.where}: deepstack_visual_indexes {deep!r:.50} is not supported")
        return MergingConfig(
            depth,
            f.count("hidden_size", 1152),
            f.count_of("num_heads", "num_attention_heads") if "num_heads" in f or "num_attention_heads" in f else 16,
            f.count("intermediate_size", 4304),
            out_hidden,
            f.count("patch_size", 16),
            f.count("spatial_merge_size", 2),
            f.count("temporal_patch_size", 2),
            isqrt(places),
            rope.number("rope_theta", 1e4),
            tuple(deep),
        )

    def form(self, f: Fields, tokens: int | None) -> MergedPatches:
        return MergedPatches.parse(f, self.patch, self.merge, self.frames, tokens)


class MergingTower(Tower):
    def __init__(self, config: MergingConfig, prefix: str) -> None:
        c = self._config = config
        self._prefix, head_dim, self.deep = prefix, c.hidden // c.heads, len(c.deep)
        if c.hidden % c.heads or head_dim % 4:
            raise UnsupportedModelError(f"config.json: a vision tower with heads of {c.hidden / c.heads:g}")
        self.attention = AttentionConfig(
            c.hidden,
            c.heads,
            c.heads,
            head_dim,
            _EPS,
            plain_rope(head_dim, 1e4),
            projections=Projections(bias=True, output_bias=True, fused="qkv", output="proj"),
            sight=Sight(sees="all"),
            norm="layer",
        )
        self.shapes = self._shapes()

    def _shapes(self) -> Shapes:
        c, p = self._config, self._prefix
        merged = c.hidden * c.merge**2
        mergers = ["merger", *(f"deepstack_merger_list.{i}" for i in range(len(c.deep)))]
        matrices = {f"{each}.linear_fc1": (merged, merged) for each in mergers}
        matrices |= {f"{each}.linear_fc2": (c.out_hidden, merged) for each in mergers}
        norms, shapes = ["merger.norm"], Shapes()
        shapes |= {f"{p}{each}.norm.{kind}": (merged,) for each in mergers[1:] for kind in ("weight", "bias")}
        for i in range(c.depth):
            block = f"blocks.{i}."
            matrices |= {f"{block}mlp.linear_fc1": (c.intermediate, c.hidden)}
            matrices |= {f"{block}mlp.linear_fc2": (c.hidden, c.intermediate)}
            norms += [f"{block}norm1", f"{block}norm2"]
            shapes |= attention_shapes(self.attention, f"{p}{block}attn.")
        shapes |= {f"{p}{name}.weight": shape for name, shape in matrices.items()}
        shapes |= {f"{p}{name}.bias": shape[:1] for name, shape in matrices.items()}
        shapes |= {f"{p}{norm}.{kind}": (c.hidden,) for norm in norms for kind in ("weight", "bias")}
        return shapes | {
            f"{p}patch_embed.proj.weight": (c.hidden, 3, c.frames, c.patch, c.patch),
            f"{p}patch_embed.proj.bias": (c.hidden,),
            f"{p}pos_embed.weight": (c.side**2, c.hidden),
        }

    def prepared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """The embedding of patches, a convolution whose steps are as long as its kernel, as a matrix."""
        return {
            name: tensor if len(tensor.shape) < 3 else replace(tensor, shape=(tensor.shape[0], prod(tensor.shape[1:])))
            for name, tensor in tensors.items()
        }

    def rows(self, part: Part, patches: Patches) -> Float32Array:
        c, p = self._config, self._prefix
        row, col = self._places(patches.grid)
        first = part(f"{p}patch_embed.")
        first.begin_pass(len(row))
        math = first.weights.math
        x = first.weights.linear(f"{p}patch_embed.proj.weight", f"{p}patch_embed.proj.bias")(
            math.of_host(patches.values)
        )
        x += math.of_host(self._positions(part(f"{p}pos_embed."), row, col, patches.grid))
        turned = turned_by(first, axial_frequencies(self.attention.head_dim, c.theta), row, col)
        cache = Cache([], len(row))
        deep = list[Array]()
        for i in range(c.depth):
            self._block(part(f"{p}blocks.{i}."), f"{p}blocks.{i}.", x, cache, turned)
            if i in c.deep:
                name = f"{p}deepstack_merger_list.{len(deep)}."
                merger = part(name)
                normed = merger.weights.norm(NormConfig(f"{name}norm.weight", _EPS, "layer"))(self._joined(x))
                deep.append(self._projected(merger, name, normed))
        merger = part(f"{p}merger.")
        normed = merger.weights.norm(NormConfig(f"{p}merger.norm.weight", _EPS, "layer"))(x)
        found = self._projected(merger, f"{p}merger.", self._joined(normed))
        return math.to_host(math.concatenate([found, *deep], 1))

    def _places(self, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each patch: those that are merged follow one another."""
        m = self._config.merge
        rows, cols = (np.arange(count).reshape(-1, m) for count in grid)
        shape = (len(rows), len(cols), m, m)
        row = np.broadcast_to(rows[:, None, :, None], shape).reshape(-1)
        return row, np.broadcast_to(cols[None, :, None, :], shape).reshape(-1)

    def _positions(self, part: Layers, row: np.ndarray, col: np.ndarray, grid: tuple[int, int]) -> Float32Array:
        """The learnt positions, from a grid whose corners are those of the picture's, [patches, hidden]."""
        side = self._config.side
        table = part.weights.math.to_host(part.weights.vector(f"{self._prefix}pos_embed.weight"))
        table, found = table.reshape(side, side, -1), np.float32(0)
        (top, down), (left, right) = (
            self._between(place, count) for place, count in zip((row, col), grid, strict=True)
        )
        for r, by in ((top, 1 - down), (np.minimum(top + 1, side - 1), down)):
            for s, across in ((left, 1 - right), (np.minimum(left + 1, side - 1), right)):
                found = found + table[r, s] * (by * across)[:, None]
        values: Float32Array = found
        return values

    def _between(self, place: np.ndarray, count: int) -> tuple[np.ndarray, Float32Array]:
        """The learnt row or column in front of each of `count` places, and how far it is behind that."""
        at = place.astype(np.float32) * np.float32(self._config.side - 1) / np.float32(max(count - 1, 1))
        before = np.floor(at)
        return before.astype(np.int64), at - before

    def _block(self, part: Layers, name: str, x: Array, cache: Cache, turned: object) -> None:
        attend_all(part, self.attention, AttentionSite(0, f"{name}attn.", f"{name}norm1.weight"), x, cache, turned)
        weights, norm = part.weights, part.weights.norm(NormConfig(f"{name}norm2.weight", _EPS, "layer"))
        one, two = f"{name}mlp.linear_fc1.", f"{name}mlp.linear_fc2."
        up = weights.linear(f"{one}weight", f"{one}bias", "gelu_tanh")
        down = weights.linear(f"{two}weight", f"{two}bias")
        by_blocks(x, lambda rows: down(up(norm(rows))))

    def _joined(self, x: Array) -> Array:
        """The patches of each token, one behind the other."""
        joined: Array = x.reshape(-1, self._config.hidden * self._config.merge**2)
        return joined

    def _projected(self, part: Layers, name: str, joined: Array) -> Array:
        weights = part.weights
        one, two = f"{name}linear_fc1.", f"{name}linear_fc2."
        inner = weights.linear(f"{one}weight", f"{one}bias", "gelu")(joined)
        return weights.linear(f"{two}weight", f"{two}bias")(inner)


def turned_by_pictures(config: JsonObject, rope: Rope | None, default: list[int]) -> Rope | None:
    """The positions of text, of which pictures turn some frequencies by their rows and columns, one in three.

    default: how many turn by time, rows and columns.
    """
    if rope is None or config.get("vision_config") is None:
        return rope
    f = rope_fields(Fields(config).within("text_config"))
    f.only("mrope_interleaved", True, None)
    sections = f.counts("mrope_section", 3) if f.get("mrope_section") is not None else default
    axes = np.zeros(len(rope.frequencies), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return replace(rope, axes=axes)


def merging_vision(
    config: JsonObject, decoder: DecoderConfig, ids: tuple[int, int, int], *, deep: bool = False
) -> Vision | None:
    """ids: those of the start, a picture and the end, where config.json has none; deep: layers may be given rows."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    hidden_size, most_deep = decoder.attention.hidden_size, decoder.num_layers if deep else 0
    tower = MergingConfig.parse(f.within("vision_config"), hidden_size, most_deep)
    start, end = f.count("vision_start_token_id", ids[0]), f.count("vision_end_token_id", ids[2])
    return Vision(
        MergingTower(tower, "model.visual."),
        tower.form,
        f.count("image_token_id", ids[1]),
        tower.merge**2,
        (start, end),
    )
