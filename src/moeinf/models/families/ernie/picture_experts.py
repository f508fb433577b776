"""Experts that only text is routed to beside others that only pictures are (Ernie4_5_VLMoeMoeBlock of transformers).

Both kinds are the experts of one MoE layer, first those for text. Those of the smaller kind are filled up with zeros.
The host tells the layers which tokens are of pictures in a further column of the embedding: soft tokens, and the marks
in front of them and behind. A mark that is generated is text, as in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.families.ernie.ernie4_5_moe import BiasRowMoe, SoftmaxRouter
from moeinf.models.layers.array_math import Array, ArrayMath, Hidden
from moeinf.models.layers.assemble import Connections, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe
from moeinf.models.layers.moe_plan import Layout
from moeinf.models.layers.protocol import Experts, Layers, Weights
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.stem import PlainStem
from moeinf.models.widened import widened
from moeinf.types import ExpertPiece, Profiler, TensorPlan, Workspace


def with_transposed(shapes: Shapes, names: BlockNames) -> Shapes:
    """With gates [hidden, experts], and biases of both kinds of experts in one tensor."""
    gates = {name: shape[::-1] for name, shape in shapes.items() if name.endswith(names.gate)}
    biases = {name: (2, *shape[1:]) for name, shape in shapes.items() if name.endswith(names.bias)}
    return shapes | gates | biases


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureMoe(BiasRowMoe):
    sizes: tuple[int, int]  # of experts for text, and for pictures

    @staticmethod
    def of(text: Moe, sizes: Sequence[int]) -> PictureMoe:
        """text: the same without those for pictures."""
        of_text, of_pictures = sizes
        if text.moe.counts:
            raise UnsupportedModelError("config.json: layers of different numbers of experts, beside some for pictures")
        moe, shared = replace(text.moe, num_experts=2 * text.moe.num_experts), text.shared
        shared = replace(shared, size=shared.count * of_text)
        widest = replace(text, moe=moe, moe_intermediate_size=max(sizes), shared=shared)
        return widened(PictureMoe, widest, sizes=(of_text, of_pictures))

    @property
    def of_each(self) -> int:
        """Experts of each kind."""
        return self.moe.num_experts // 2

    def filling(self, hidden: int) -> int:
        """Numbers that all experts are filled up with."""
        missing = 2 * max(self.sizes) - sum(self.sizes)
        return 3 * hidden * missing * self.of_each * self.moe.num_layers

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """As they are published: two gates, and one tensor of biases."""
        one = replace(self.moe, num_experts=self.of_each)
        shapes = with_transposed(BiasRowMoe.shapes(replace(self, moe=one), decoder), self.names)
        return shapes | {f"{name}_1": shape for name, shape in shapes.items() if name.endswith(self.names.gate)}

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan = BiasRowMoe.plan(self, decoder, dense)
        own: Layout = {name: self._own(piece, decoder) for name, (_, (piece,)) in plan.experts[0].items()}
        return replace(plan, experts=[own])

    def _own(self, piece: ExpertPiece, decoder: DecoderConfig) -> tuple[tuple[int, ...], tuple[ExpertPiece, ...]]:
        size, hidden = self.sizes[piece.expert >= self.of_each], decoder.attention.hidden_size
        shape = (hidden, size) if piece.part == "down" else (size, hidden)
        return shape, (piece if size == self.moe_intermediate_size else replace(piece, filled=shape),)


class OfOneKind:
    """In the place of routers' Groups: keeps the scores of the experts that a token may use."""

    def __init__(self, math: ArrayMath, given: Given, of_each: int) -> None:
        self._math, self._given, self._of_pictures = math, given, math.of_host(np.arange(2 * of_each) >= of_each)

    def kept(self, scores: Array, of_group: Callable[[Array], Array], instead: float) -> Array:
        return self._math.where((self._given.rows[0] > 0.5) == self._of_pictures, scores, instead)


class PictureRouter(SoftmaxRouter):
    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, given: Given) -> None:
        """given: shared with the stem."""
        super().__init__(layers, moe, site)
        self._of_each = moe.moe.num_experts // 2
        self._groups = OfOneKind(self._math, given, self._of_each)  # type: ignore[assignment]

    def _gate_of(self, weights: Weights, name: str) -> Callable[[Hidden], Hidden]:
        text, pictures = weights.transposed(name), weights.transposed(f"{name}_1")
        return lambda x: weights.math.concatenate([text(x), pictures(x)], 1)

    def _scores(self, logits: Array) -> Array:
        return self._math.softmax(logits.reshape(len(logits), 2, self._of_each)).reshape(*logits.shape)


class PictureStem(PlainStem):
    """An embedding, and whether a token is of a picture."""

    def __init__(self, layers: Layers, decoder: DecoderConfig, marks: tuple[int, int], given: Given) -> None:
        super().__init__(layers.embedding(decoder.embedding))
        self._layers, self._rows, self._hidden = layers, layers.lookup(decoder.embedding), decoder.attention.hidden_size
        self._marks, self._given = marks, given

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        column, (before, behind) = np.zeros((len(ids), 1), np.float32), self._marks
        for picture in cache.pictures:
            first, last = picture.start - cache.length, picture.end - cache.length
            column[max(0, first) : max(0, last)] = 1
            for place, mark in ((first - 1, before), (last, behind)):
                if 0 <= place < len(ids) and ids[place] == mark:
                    column[place] = 1
        return self._layers.upload(np.concatenate([self._rows(ids), column], 1))

    def begin(self, x: Array) -> Hidden:
        self._given.rows[:] = [x[:, self._hidden :]]
        return self._layers.weights.math.concatenate([x[:, : self._hidden]], 1)


@dataclass(frozen=True, slots=True)
class PictureConnections(Connections):
    marks: tuple[int, int]  # the tokens in front of a picture, and behind it

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        return replace(mixers, token=mixers.token + decoder.attention.hidden_size + 1)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, given = spec.decoder, Given()
        assert isinstance(spec.blocks, Moe)
        routed = replace(spec.blocks, router=partial(PictureRouter, given=given))
        blocks, stem = routed.make(d, layers, experts, profiler), PictureStem(layers, d, self.marks, given)
        return Decoder(d, layers, blocks, experts, profiler, spec.attention(layers), stem)
