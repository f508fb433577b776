"""Llama 4, the language model of it: an expert a token beside a shared one, attention in chunks (Llama4ForCausalLM).

Every fourth layer sees all tokens and has no positions; instead its queries are sharpened in long contexts. An expert
is given the hidden state times the router's score. Checkpoints hold a model of images beside it, which is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention_config import (
    AttentionConfig,
    HeadNorms,
    NormConfig,
    Scores,
    Shapes,
    Sharpening,
    Sight,
    mlp_shapes,
)
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.moe_block import GatedMLP, MoeBlock, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.models.layers.rope import rope_fields
from moeinf.models.text_part import text_part
from moeinf.types import Activation, JsonObject, MoeShape, Profiler, TensorPlan

_OTHER_MODELS = r"(vision_model|multi_modal_projector)\..*"


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    moe_layers: tuple[int, ...]
    intermediate_size: int  # of an expert, and of the shared one
    intermediate_size_mlp: int  # of layers without experts

    @staticmethod
    def parse(f: Fields) -> Config:
        f.present("head_dim")
        f.only("partial_rotary_factor", 1.0, None)
        rope_fields(f).only("partial_rotary_factor", 1.0, None)
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=5e5,
            head_norms=HeadNorms("turned", names=None) if f.flag("use_qk_norm", True) else None,
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
        return Config(
            decoder,
            routed_shape(f, ("num_local_experts",), f.count("num_experts_per_tok", 1), decoder.num_layers, moe_layers),
            moe_layers,
            f.count("intermediate_size"),
            f.count("intermediate_size_mlp", 16384),
        )

    def block(self, layer: int) -> str:
        return f"{self.decoder.prefix}layers.{layer}.feed_forward."


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

    def __init__(self, weights: Weights, block: str, norm: NormConfig, top_k: int) -> None:
        self._math, self._routing, self.top_k = weights.math, weights.routing, top_k
        self._norm, self._gate = weights.norm(norm), weights.linear(f"{block}router.weight")
        self._alone = weights.math.of_host(np.eye(top_k, dtype=np.float32))

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


class SharedMLP:
    """mlp(norm(x))."""

    def __init__(self, weights: Weights, prefix: str, norm: NormConfig, activation: Activation) -> None:
        self._norm, self._mlp = weights.norm(norm), SharedExpert(weights, prefix, activation=activation)

    def __call__(self, x: Hidden) -> Hidden:
        return self._mlp(self._norm(x))


class Family(DecoderFamily):
    name = "llama4"
    num_shared_experts = 1

    def __init__(self, config: JsonObject) -> None:
        text = text_part(config, prefix="model.")
        self._config = c = Config.parse(text.fields)
        self.decoder, self.moe, self.repeats = c.decoder, c.moe, c.moe.top_k > 1

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, weights, blocks = self._config, layers.weights, list[Block]()
        for i in range(c.decoder.num_layers):
            prefix, norm = c.block(i), c.decoder.block_norm(i)
            if i not in c.moe_layers:
                blocks.append(GatedMLP(layers.weights, prefix, norm, activation=c.decoder.activation))
                continue
            shared = SharedMLP(weights, f"{prefix}shared_expert.", norm, c.decoder.activation)
            layer, router = c.moe_layers.index(i), Router(weights, prefix, norm, c.moe.top_k)
            blocks.append(
                MoeBlock(layer, router, experts, profiler, beside=shared)
                if c.moe.top_k == 1
                else SeveralExperts(layer, router, experts, profiler, shared)
            )
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def block_shapes(self) -> Shapes:
        c, shapes = self._config, Shapes()
        hidden = c.decoder.attention.hidden_size
        for i in range(c.decoder.num_layers):
            prefix = c.block(i)
            if i not in c.moe_layers:
                shapes |= mlp_shapes(hidden, c.intermediate_size_mlp, prefix)
                continue
            shapes[f"{prefix}router.weight"] = (c.moe.experts_of(c.moe_layers.index(i)), hidden)
            shapes |= mlp_shapes(hidden, c.intermediate_size, f"{prefix}shared_expert.")
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        c = self._config
        blocks = [c.block(i) for i in c.moe_layers]
        plan = self.gated_experts(GatedExperts(blocks, c.intermediate_size, None, transposed=True))
        return replace(plan, ignored=(*plan.ignored, _OTHER_MODELS), renamed={r"^language_model\.": ""})
