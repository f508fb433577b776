"""Llama 4: an expert a token beside a shared one, attention in chunks, and a tower that sees tiles of pictures.

Every fourth layer sees all tokens and has no positions; instead its queries are sharpened in long contexts. An expert
is given the hidden state times the router's score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import AttentionConfig, HeadNorms, Scores, Sharpening, Sight
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring, Shared
from moeinf.models.layers.moe_block import MoeBlock, SharedExpert
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.models.layers.rope import rope_fields
from moeinf.models.layers.vision.of_families.llama_vision import llama_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import TextIn
from moeinf.types import JsonObject, Profiler

_OTHER_MODELS = r"(vision_model|multi_modal_projector)\..*"


def _parse(f: Fields) -> Spec:
    f.present("head_dim")
    f.only("partial_rotary_factor", 1.0, None)
    rope_fields(f).only("partial_rotary_factor", 1.0, None)
    decoder = parse_decoder(
        f, norm_eps=1e-5, theta=5e5, head_norms=HeadNorms("turned", names=None) if f.flag("use_qk_norm", True) else None
    )
    base, layers = decoder.attention, range(decoder.num_layers)
    assert base.rope is not None
    base = replace(base, rope=replace(base.rope, interleaved=True))
    special = {i: each for i, each in enumerate(_attention_of_layers(f, base, decoder.num_layers)) if each != base}
    decoder = replace(decoder, attention=base, special=special)
    listed = f.layers("moe_layers") if f.get("moe_layers") is not None else None
    step = f.count("interleave_moe_layer_step", 1)
    moe_layers = tuple(i for i in layers if (i in listed if listed is not None else (i + 1) % step == 0))
    if not moe_layers:
        raise CheckpointError("config.json: moe_layers and interleave_moe_layer_step leave no layer with experts")
    top_k = f.count("num_experts_per_tok", 1)
    blocks = Llama4Moe(
        routed_shape(f, ("num_local_experts",), top_k, decoder.num_layers, moe_layers),
        moe_layers,
        f.count("intermediate_size_mlp", 16384),
        f.count("intermediate_size"),
        Router,
        scoring=Scoring(corrected=False),
        shared=Shared(1),
        names=BlockNames("feed_forward.", gate="router.weight", shared="shared_expert."),
        transposed=True,
    )
    return Spec(decoder, blocks, repeats=top_k > 1)


def _attention_of_layers(f: Fields, base: AttentionConfig, num_layers: int) -> list[AttentionConfig]:
    every = f.count("no_rope_layer_interval", 4)
    turned = [(i + 1) % every != 0 for i in range(num_layers)]
    if f.get("no_rope_layers"):
        turned = [bool(each) for each in f.counts("no_rope_layers", num_layers)]
    kinds = f.kinds("layer_types", num_layers, "chunked_attention", "full_attention") or tuple(
        "chunked_attention" if each else "full_attention" for each in turned
    )
    chunk = f.count("attention_chunk_size", 8192)
    if "attention_chunk_size" in f and f.get("attention_chunk_size") is None:
        raise UnsupportedModelError(f"{f.where}: attention_chunk_size = None is not supported")
    sharpening = None
    if f.flag("attn_temperature_tuning", True):
        sharpening = Sharpening(f.number("attn_scale", 0.1), f.count("floor_scale", 8192), offset=1)
    without = replace(base, rope=None, head_norms=None, scores=Scores(sharpening=sharpening))
    return [
        replace(base if each else without, sight=Sight(chunk, chunked=True))
        if kind == "chunked_attention"
        else (base if each else without)
        for each, kind in zip(turned, kinds, strict=True)
    ]


class Router:
    """The best experts. Each is given the hidden state times the sigmoid of its own score."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights, self.top_k = layers.weights, moe.moe.top_k
        self._math, self._routing = weights.math, weights.routing
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._alone = weights.math.of_host(np.eye(self.top_k, dtype=np.float32))

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        """With the state that the best expert is given."""
        hidden, ids, shares = self._chosen(x)
        return hidden * shares[:, :1], self._routing(ids, shares * 0 + 1)

    def one_by_one(self, x: Hidden) -> Iterator[tuple[Hidden, object]]:
        """Of each expert of a token, what it is given, and a routing in which it alone has a weight."""
        hidden, ids, shares = self._chosen(x)
        for nth in range(self.top_k):
            yield hidden * shares[:, nth : nth + 1], self._routing(ids, shares * 0 + self._alone[nth : nth + 1])

    def _chosen(self, x: Hidden) -> tuple[Hidden, Array, Array]:
        math, hidden = self._math, self._norm(x)
        scores = self._gate(hidden)
        ids = math.top_k(scores, self.top_k)
        return hidden, ids, math.sigmoid(math.take(scores, ids))


class SeveralExperts:
    """A block in which the experts of a token are given different states: a pass comes to them one after the other."""

    def __init__(
        self, moe_layer: int, router: Router, experts: Experts, profiler: Profiler, shared: Callable[[Hidden], Hidden]
    ) -> None:
        self.moe_layer, self.router = moe_layer, router
        self._experts, self._profiler, self._shared = experts, profiler, shared

    def add_to(self, x: Hidden) -> None:
        out = x * 0
        for given, routing in self.router.one_by_one(x):
            self._profiler.lap("router")
            self._experts.run(self.moe_layer, given, routing, out)
        x += out + self._shared(x)


@dataclass(frozen=True, slots=True)
class Llama4Moe(Moe):
    fused_first: ClassVar[bool] = True

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        weights, router = layers.weights, Router(layers, self, site)
        norm = weights.norm(site.norm)
        mlp = SharedExpert(weights, site.block + self.names.shared, activation=decoder.activation)

        def shared(x: Hidden) -> Hidden:
            return mlp(norm(x))

        if self.moe.top_k > 1:
            return SeveralExperts(site.moe_layer, router, experts, profiler, shared)
        return MoeBlock(site.moe_layer, router, experts, profiler, beside=shared)


class Family(DecoderFamily):
    name = "llama4"
    parse = staticmethod(_parse)
    text = TextIn("model.")
    ignored = (_OTHER_MODELS,)
    renamed = ((r"^language_model\.", ""),)

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        hidden_size = self.decoder.attention.hidden_size
        self.vision, self.no_vision = seeing(lambda: llama_vision(config, hidden_size))
