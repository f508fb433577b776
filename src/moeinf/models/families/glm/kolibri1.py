"""Aleph Alpha's Kolibri: sigmoid routing, chosen by logits and a correction bias, between norms on both sides.

Every fifth layer sees all tokens and has no positions; the others have a window (Kolibri1ForCausalLM).
"""

from __future__ import annotations

from moeinf.models.families.glm.exaone_moe import windowed
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, Scoring, Shared
from moeinf.models.layers.rope import whole_heads
from moeinf.models.layers.routers import SigmoidRouter

_NORMS = LayerNorms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm")
_NAMES = BlockNames(behind="post_mlp_layernorm")
_RENAMED = {  # as published
    r"\.moe\.router\.expert_bias": ".mlp.gate.e_score_correction_bias",
    r"\.post_attn_norm\.": ".post_self_attn_layernorm.",
    r"\.post_ffn_norm\.": ".post_mlp_layernorm.",
}


def _parse(f: Fields) -> Spec:
    f.only("attention_bias", False, None)
    whole_heads(f)
    f.present("head_dim", "num_experts_per_tok", "sliding_window", "shared_expert_intermediate_size")
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms())
    decoder = windowed(f.replaced(sliding_window_pattern=5), decoder).named(norms=_NORMS)
    layers = tuple(range(decoder.num_layers))
    blocks = Moe(
        routed_shape(f, ("num_experts", "num_local_experts"), f.count("num_experts_per_tok"), len(layers)),
        layers,
        0,
        f.count("moe_intermediate_size"),
        LogitsRouter,
        scoring=Scoring(f.flag("norm_topk_prob", False)),
        shared=Shared(1, f.count("shared_expert_intermediate_size")),
        names=_NAMES,
    )
    return Spec(decoder, blocks)


class LogitsRouter(SigmoidRouter):
    """Chosen is by logits + bias, weighted by the sigmoids of the logits alone."""

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math = self._math
        hidden = self._norm(x)
        logits = self._gate(hidden)
        ids = math.top_k(logits if self._bias is None else logits + self._bias, self._top_k)
        weights = math.sigmoid(math.take(logits, ids))
        if self._scoring.normalise:
            weights = weights / math.sum(weights, -1, True)
        return hidden, self._routing(ids, weights * self._scoring.scaling)


class Family(DecoderFamily):
    name = "kolibri1"
    parse = staticmethod(_parse)
    renamed = tuple(_RENAMED.items())
