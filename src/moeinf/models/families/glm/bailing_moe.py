"""Ling and Ring, of both generations: queries, keys and values in one matrix; softmax routing, or DeepSeek-V3's.

Follows modeling_bailing_moe.py of inclusionAI/Ling and modeling_bailing_moe_v2.py of inclusionAI/Ling-V2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moeinf.models.family import DecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import HeadNorms, NormConfig, Projections, Shapes, attention_shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.deepseek_moe import BlockNames, DeepseekMoe, SigmoidRouter
from moeinf.models.layers.protocol import Attention, Experts, Layers, Router, Weights
from moeinf.types import Profiler, TensorPlan

_FUSED = "query_key_value"


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: DeepseekMoe
    second: bool  # of the second generation: scores by sigmoid

    @staticmethod
    def parse(f: Fields) -> Config:
        second = _is_second(f)
        _refuse(f, second=second)
        decoder = parse_decoder(
            f,
            norm_eps=1e-6 if second else 1e-5,
            theta=1e4,
            partial=1.0,
            bias=False,
            output_bias=False,
            projections=Projections(fused=_FUSED if f.flag("fused_projections", True) else None, output="dense"),
            head_norms=HeadNorms(names=("query_layernorm", "key_layernorm"))
            if second and f.flag("use_qk_norm", True)
            else None,
        )
        blocks = DeepseekMoe.parse(
            f,
            decoder.num_layers,
            normalise=True,
            corrected=second and f.flag("moe_router_enable_expert_bias", True),
            shared="num_shared_experts",
        )
        blocks = replace(blocks, names=BlockNames(bias="gate.expert_bias"))
        return Config(decoder.named(embedding="word_embeddings"), blocks, second)


def _is_second(f: Fields) -> bool:
    """Both generations were published under one model_type; the name of the class, or of the scores, tells."""
    named = f.get("architectures")
    classes = named if isinstance(named, list) else []
    return (
        f.get("model_type") == "bailing_moe_v2"
        or f.get("score_function") is not None
        or any(isinstance(name, str) and name.startswith("BailingMoeV2") for name in classes)
    )


def _refuse(f: Fields, *, second: bool) -> None:
    f.only("use_bias", False, *([None] if second else []))  # the default of the first is yes
    for name, *allowed in (
        ("use_qkv_bias", False),
        ("attention_bias", False),
        ("norm_head", False),
        ("norm_softmax", False),
        ("use_sliding_window", False),
        ("use_rmsnorm", True),
        ("moe_shared_expert_intermediate_size", f.get("moe_intermediate_size")),
    ):
        f.only(name, *allowed, None)
    if second:
        f.present("partial_rotary_factor", "routed_scaling_factor", "n_group")
        f.only("score_function", "sigmoid", None)
        f.only("norm_topk_prob", True, None)
    else:
        for name, *allowed in (
            ("n_group", 1),
            ("routed_scaling_factor", 1.0),
            ("partial_rotary_factor", 1.0),
            ("use_qk_norm", False),
        ):
            f.only(name, *allowed, None)


class Family(DecoderFamily):
    name = "bailing_moe"

    def __init__(self, config: dict[str, Any]) -> None:
        self._take(Config.parse(Fields(config)))  # fused_projections: moeinf's own, of a GGUF file

    def _take(self, c: Config) -> None:
        self._config = c
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, attention = self._config, list[Attention]()
        for i in range(c.decoder.num_layers):
            attention.append(layers.attention(c.decoder.attention, c.decoder.attention_site(i, "attention")))

        def softmax(weights: Weights, moe: DeepseekMoe, block: str, norm: NormConfig) -> Router:
            return layers.softmax_router(f"{block}gate.weight", norm, moe.moe.top_k, normalise=moe.normalise)

        router = SigmoidRouter if c.second else softmax
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, router)
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def attention_shapes(self) -> Shapes:
        shapes = Shapes()
        for i in range(self.decoder.num_layers):
            shapes |= attention_shapes(self.decoder.attention, f"model.layers.{i}.attention.")
        return shapes

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        blocks = self._config.blocks
        plan = self.gated_experts(blocks.experts(self.decoder))
        others = (name for name in plan.dense if name.endswith((f".{_FUSED}.weight", ".dense.weight")))
        return blocks.with_future_layers(replace(plan, matrices=plan.matrices.union(others)), self.decoder)
