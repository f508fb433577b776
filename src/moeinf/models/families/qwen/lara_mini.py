"""Lara 4 Mini: gated DeltaNet beside layers with windows, and few that see all tokens and have no positions (LaraMini).

Attention and experts are qwen3_moe's; a shared expert is added in full. DeltaNet's projections are one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from moeinf.models.families.ernie.ernie4_5_moe import SoftmaxRouter
from moeinf.models.family import MixedDecoderFamily
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.attention_config import HeadNorms, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, parse_decoder
from moeinf.models.layers.deepseek_moe import BlockNames, DeepseekMoe
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.recurrent.delta_config import DeltaConfig, delta_shapes, delta_workspace
from moeinf.models.layers.recurrent.mixed import MixedLayers
from moeinf.models.layers.rope import whole_heads
from moeinf.types import Profiler, TensorPlan

_LINEAR, _WINDOW, _ALL = "linear_attention", "sliding_attention", "full_attention"
_PATTERN = (_LINEAR, _WINDOW, _LINEAR, _ALL, _WINDOW)  # of layers, where they are not listed


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: DeepseekMoe
    delta: DeltaConfig
    linear_layers: frozenset[int]  # that have DeltaNet instead of attention

    @staticmethod
    def parse(f: Fields) -> Config:
        f.present("head_dim", "tie_word_embeddings", "linear_num_key_heads", "linear_num_value_heads")
        whole_heads(f)
        d = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms())
        layers, window = range(d.num_layers), f.count("sliding_window", 512)
        kinds = f.kinds("layer_types", len(layers), _LINEAR, _WINDOW, _ALL)
        kinds = kinds or tuple(_PATTERN[i % len(_PATTERN)] for i in layers)
        d = d.with_windows([window if kind == _WINDOW else None for kind in kinds])
        d = d.without_positions({i for i in layers if kinds[i] == _ALL})
        size, shared = f.count("moe_intermediate_size"), f.count("shared_expert_intermediate_size")
        blocks = DeepseekMoe(
            routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), len(layers)),
            tuple(layers),
            0,
            size,
            1,
            normalise=f.flag("norm_topk_prob", True),
            corrected=False,
            names=BlockNames(shared="shared_expert."),
            shared_size=shared,
        )
        delta = DeltaConfig.parse(f, d.attention.hidden_size, d.attention.norm_eps, stacked=False)
        delta = replace(delta, joined=True, norm="rms")
        return Config(d, blocks, delta, frozenset(i for i in layers if kinds[i] == _LINEAR))


class Family(MixedDecoderFamily):
    name = "lara_mini"
    num_shared_experts = 1

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = c = Config.parse(Fields(config))
        self.decoder, self.moe = c.decoder, c.blocks.moe
        shapes, workspace = partial(delta_shapes, c.delta), delta_workspace(c.delta)
        self.mixed = MixedLayers(c.decoder, c.linear_layers, "linear_attn", shapes, workspace, c.delta.state_bytes)

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c = self._config
        attention = self.mixed.attention(layers, lambda site: layers.delta_net(c.delta, site))
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, SoftmaxRouter)
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.gated_experts(self._config.blocks.experts(self.decoder))
        projections = (name for name in plan.dense if name.endswith(".in_proj.weight"))
        renamed = {r"\.linear_attn\.out_norm\.": ".linear_attn.norm."}
        return replace(plan, matrices=plan.matrices.union(projections), renamed=renamed)
