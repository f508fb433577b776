"""Hunyuan-A13B: Mixtral's routing beside a shared MLP; queries and keys are normed behind their rotation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention_config import MLP_NAMES, HeadNorms, Shapes, mlp_shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.models.layers.rope import Rope, plain_rope, rope_fields, rope_kind, rope_of, whole_heads
from moeinf.models.layers.routers import SoftmaxRouterPart
from moeinf.types import JsonObject, MoeShape, Profiler, TensorPlan

_LISTED = ("moe_topk", "moe_intermediate_size", "num_shared_expert")  # may have a number for each layer
_ALPHA = ("rope_type", "type", "rope_theta", "alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    intermediate_size: int

    @staticmethod
    def parse(config: JsonObject) -> Config:
        f = Fields({name: _common(name, value) if name in _LISTED else value for name, value in config.items()})
        size = f.count("intermediate_size")
        for name, *allowed in (
            ("moe_intermediate_size", size),
            ("num_shared_expert", 1),
            ("use_mixed_mlp_moe", True),
            ("use_qk_norm", True),
            ("use_cla", False),
            ("use_mla", False),
            ("position_embedding_xdrope", False),
            ("group_limited_greedy", False),
            ("mlp_bias", False),
            ("norm_topk_prob", True),
            ("moe_layer_num_skipped", 0),
        ):
            f.only(name, *allowed, None)
        f.present("moe_topk")
        head_dim = f.count("head_dim", f.count("hidden_size") // f.count("num_attention_heads"), minimum=2)
        decoder = parse_decoder(
            f,
            norm_eps=1e-5,
            theta=1e4,
            rope=_rope(f, head_dim),
            head_norms=HeadNorms("turned", names=("query_layernorm", "key_layernorm")),
        )
        top_k = f.count_of("moe_topk", "num_experts_per_tok")
        return Config(decoder, routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers), size)


def _common(name: str, value: Any) -> Any:
    if isinstance(value, list) and value:
        if any(each != value[0] for each in value):
            raise UnsupportedModelError(f"config.json: {name} = {value!r:.100} is not supported (only one for all)")
        return value[0]
    return value


def _rope(f: Fields, head_dim: int) -> Rope:
    """`dynamic` with alpha is no dynamic scaling, but a larger base: theta * alpha^(d / (d - 2)), at any length."""
    r, kind = rope_fields(f), rope_kind(f)
    whole_heads(f)
    if r.get("alpha") is None or kind != "dynamic":
        rope = rope_of(f, head_dim, 1e4, f.count("max_position_embeddings"))
        if rope.scale != 1.0 or rope.limit:  # norms of heads stand behind positions
            raise UnsupportedModelError(
                f"{r.where} of type {kind!r} is not supported in this family (only 'default', 'linear', 'proportional' "
                "and 'llama3', or 'dynamic' with alpha)"
            )
        return rope
    r.refuse_others(*_ALPHA)
    theta = r.number("rope_theta", f.number("rope_theta", 1e4))
    return plain_rope(head_dim, theta * r.number("alpha") ** (head_dim / (head_dim - 2)))


class Family(DecoderFamily):
    name = "hunyuan_v1_moe"
    num_shared_experts = 1

    def __init__(self, config: JsonObject) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks = self._config, list[Block]()
        for i, block in enumerate(self._blocks()):
            norm = c.decoder.block_norm(i)
            router = layers.make(SoftmaxRouterPart(f"{block}gate.wg.weight", norm, c.moe.top_k, normalise=True))
            shared = SharedExpert(layers.weights, f"{block}shared_mlp.", activation=c.decoder.activation)
            blocks.append(MoeBlock(i, router, experts, profiler, shared=shared))
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def _blocks(self) -> list[str]:
        return [f"model.layers.{i}.mlp." for i in range(self.decoder.num_layers)]

    def block_shapes(self) -> Shapes:
        hidden, shapes = self.decoder.attention.hidden_size, Shapes()
        for i, block in enumerate(self._blocks()):
            shapes[f"{block}gate.wg.weight"] = (self.moe.experts_of(i), hidden)
            shapes |= mlp_shapes(hidden, self._config.intermediate_size, f"{block}shared_mlp.")
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        return self.gated_experts(GatedExperts(self._blocks(), self._config.intermediate_size, MLP_NAMES))
