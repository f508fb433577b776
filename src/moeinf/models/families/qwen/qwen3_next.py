"""Qwen3-Next: gated DeltaNet in most layers, gated attention in the others, 512 small experts and a shared one.

Attention is qwen3_moe's with an output gate (arXiv 2505.06708), norms that store their weight less one, and a quarter
of each head turned; DeltaNet is delta_net.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from moeinf.models.family import MixedDecoderFamily
from moeinf.models.fields import Fields
from moeinf.models.layers.attention_config import Gate, HeadNorms, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.qwen_moe import QwenMoe
from moeinf.models.layers.recurrent.delta_config import DeltaConfig, delta_shapes, delta_workspace
from moeinf.models.layers.recurrent.mixed import MixedLayers
from moeinf.types import Profiler, TensorPlan

MTP = r"mtp\..*"  # a further layer that guesses tokens ahead: kept, and not used


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
        decoder = parse_decoder(
            f, norm_eps=1e-6, theta=1e4, partial=0.25, head_norms=HeadNorms(), gate=Gate(), norm="rms+1"
        )
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


class Family(MixedDecoderFamily):
    name = "qwen3_next"

    def __init__(self, config: dict[str, Any]) -> None:
        f = Fields(config)  # stacked_projections: moeinf's own, of a GGUF file, where they lie apart as in Qwen3.5
        self._take(Config.parse(f, stacked=f.flag("stacked_projections", True)))

    def _take(self, c: Config) -> None:
        self._config = c
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts
        self.mixed = MixedLayers(
            c.decoder,
            c.linear_layers,
            "linear_attn",
            partial(delta_shapes, c.delta),
            delta_workspace(c.delta),
            c.delta.state_bytes,
        )

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        attention = self.mixed.attention(layers, lambda site: layers.delta_net(c.delta, site))
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler)
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.gated_experts(self._config.blocks.experts(self.decoder))
        ends = ("_proj_qkvz.weight", "_proj_qkv.weight", "_proj_z.weight")
        projections = (name for name in plan.dense if name.endswith(ends))
        return replace(plan, ahead=(MTP,), matrices=plan.matrices.union(projections))
