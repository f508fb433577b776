"""Qwen3-Next: gated DeltaNet in most layers, gated attention in the others, 512 small experts and a shared one.

Attention is qwen3_moe's with an output gate (arXiv 2505.06708), norms that store their weight less one, and a quarter
of each head turned; DeltaNet is delta_net.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from moeinf.models.fields import Fields
from moeinf.models.layers.decoder import Decoder, DecoderConfig, outer_shapes, parse_decoder
from moeinf.models.layers.delta_config import DeltaConfig
from moeinf.models.layers.delta_net import delta_shapes, delta_work
from moeinf.models.layers.protocol import Attention, Layers, attention_shapes
from moeinf.models.layers.qwen_moe import QwenMoe
from moeinf.types import DTYPE_BYTES, DType, Experts, ModelInfo, Profiler, TensorPlan

MTP = r"mtp\..*"  # a further layer that guesses tokens ahead: not used


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: QwenMoe
    delta: DeltaConfig
    linear_layers: frozenset[int]  # that have DeltaNet instead of attention

    @staticmethod
    def parse(f: Fields, *, stacked: bool = True) -> Config:
        """stacked: how DeltaNet's projections are stored."""
        f.only("use_sliding_window", False, None)
        f.present("head_dim")
        decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, partial=0.25, qk_norm="head", gate=True, norm="rms+1")
        a, every = decoder.attention, f.count("full_attention_interval", 4)
        kinds = f.kinds("layer_types", decoder.num_layers, "linear_attention", "full_attention") or tuple(
            "linear_attention" if (i + 1) % every else "full_attention" for i in range(decoder.num_layers)
        )
        return Config(
            decoder,
            QwenMoe.parse(f, decoder.num_layers, norm_topk_prob=True),
            DeltaConfig.parse(f, a.hidden_size, a.norm_eps, stacked=stacked),
            frozenset(i for i, kind in enumerate(kinds) if kind == "linear_attention"),
        )

    def plan(self, *ignored: str) -> TensorPlan:
        shapes = outer_shapes(self.decoder)
        for i in range(self.decoder.num_layers):
            layer = f"{self.decoder.prefix}layers.{i}."
            shapes |= (
                delta_shapes(self.delta, f"{layer}linear_attn.")
                if i in self.linear_layers
                else attention_shapes(self.decoder.attention, f"{layer}self_attn.")
            )
        plan = self.blocks.plan(self.decoder, shapes)
        projections = (
            name for name in shapes if name.endswith(("_proj_qkvz.weight", "_proj_qkv.weight", "_proj_z.weight"))
        )
        return replace(
            plan,
            ignored=(*plan.ignored, MTP, *ignored),
            matrices=plan.matrices.union(projections),
            work=plan.work | delta_work(self.delta),
        )

    def info(self, architecture: str, dtype: DType) -> ModelInfo:
        a, linear = self.decoder.attention, len(self.linear_layers)
        info = self.blocks.info(architecture, self.decoder, self.plan(), dtype)
        of_a_layer = 2 * a.num_kv_heads * a.head_dim * DTYPE_BYTES[dtype]
        return replace(
            info,
            kv_bytes_per_token=(self.decoder.num_layers - linear) * of_a_layer,
            state_bytes=linear * self.delta.state_bytes,
        )

    def build(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        attention = list[Attention]()
        for i in range(self.decoder.num_layers):
            layer = f"{self.decoder.prefix}layers.{i}."
            norm = f"{layer}input_layernorm.weight"
            attention.append(
                layers.delta_net(self.delta, f"{layer}linear_attn.", norm, i)
                if i in self.linear_layers
                else layers.attention(self.decoder.attention, f"{layer}self_attn.", norm, i)
            )
        blocks = self.blocks.blocks(self.decoder, layers, experts, profiler)
        return Decoder(self.decoder, layers, blocks, experts, profiler, attention)


def tensor_plan(config: dict[str, Any]) -> TensorPlan:
    return Config.parse(Fields(config)).plan()


def model_info(config: dict[str, Any], dtype: DType) -> ModelInfo:
    return Config.parse(Fields(config)).info("qwen3_next", dtype)


def build(config: dict[str, Any], layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
    return Config.parse(Fields(config)).build(layers, experts, profiler)
