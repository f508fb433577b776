"""Aleph Alpha's Kolibri: sigmoid routing, chosen by logits and a correction bias, between norms on both sides.

Every fifth layer sees all tokens and has no positions; the others have a window (Kolibri1ForCausalLM).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from moeinf.models.families.glm import glm4_moe
from moeinf.models.families.glm.exaone_moe import windowed
from moeinf.models.families.glm.glm4_moe import Config
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import LayerNorms, parse_decoder
from moeinf.models.layers.deepseek_moe import BlockNames, DeepseekMoe, MakeRouter, SigmoidRouter
from moeinf.models.layers.rope import whole_heads
from moeinf.types import TensorPlan

_NORMS = LayerNorms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm")
_NAMES = BlockNames(behind="post_mlp_layernorm")
_RENAMED = {  # as published
    r"\.moe\.router\.expert_bias": ".mlp.gate.e_score_correction_bias",
    r"\.post_attn_norm\.": ".post_self_attn_layernorm.",
    r"\.post_ffn_norm\.": ".post_mlp_layernorm.",
}


def _parse(f: Fields) -> Config:
    f.only("attention_bias", False, None)
    whole_heads(f)
    f.present("head_dim", "num_experts_per_tok", "sliding_window", "shared_expert_intermediate_size")
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms())
    decoder = windowed(f.replaced(sliding_window_pattern=5), decoder).named(norms=_NORMS)
    layers = tuple(range(decoder.num_layers))
    blocks = DeepseekMoe(
        routed_shape(f, ("num_experts", "num_local_experts"), f.count("num_experts_per_tok"), len(layers)),
        layers,
        0,
        f.count("moe_intermediate_size"),
        1,
        normalise=f.flag("norm_topk_prob", False),
        names=_NAMES,
        shared_size=f.count("shared_expert_intermediate_size"),
    )
    return Config(decoder, blocks)


class LogitsRouter(SigmoidRouter):
    """Chosen is by logits + bias, weighted by the sigmoids of the logits alone."""

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        c, math = self._config, self._math
        hidden = self._norm(x)
        logits = self._gate(hidden)
        ids = math.top_k(logits if self._bias is None else logits + self._bias, c.moe.top_k)
        weights = math.sigmoid(math.take(logits, ids))
        if c.normalise:
            weights = weights / math.sum(weights, -1, True)
        return hidden, self._routing(ids, weights * c.scaling)


class Family(glm4_moe.Family):
    name = "kolibri1"
    parse = staticmethod(_parse)

    @property
    def router(self) -> MakeRouter:
        return LogitsRouter

    @cached_property
    def tensors(self) -> TensorPlan:
        return replace(super().tensors, renamed=_RENAMED)
