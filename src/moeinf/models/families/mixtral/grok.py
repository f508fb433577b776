"""Grok-1 and Grok-2: four norms a layer, scores and routers that are capped, Grok-2's MLP beside the experts.

transformers has neither. This follows xAI's model.py of Grok-1 and sglang's grok.py, which xAI names for Grok-2:
    x' = x + post_attn_norm(attention(pre_attn_norm(x)))
    x' + post_moe_norm((mlp(h) + experts(h)) / sqrt(2)), h = pre_moe_norm(x'), of Grok-1 without the MLP and sqrt(2)
Weights of experts are shares of a softmax over all, which are not normalised. Behind position attn_temperature_len
Grok-2 sharpens scores that are capped already: that is not computed, so its context ends there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Scores, Shapes, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig, LayerNorms, Logits, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring
from moeinf.models.layers.moe_block import SharedExpert
from moeinf.models.layers.protocol import Layers, Weights

NORMS = LayerNorms("pre_attn_norm", "post_attn_norm", "pre_moe_norm")
NAMES = BlockNames("block_sparse_moe.", experts=("w1", "w3", "w2"), behind="post_moe_norm")


def _parse(f: Fields) -> Spec:
    f.fixed(attn_logit_softcapping_method="tanh", sliding_window_size=-1, global_attn_every_n=1)
    f.only("attention_bias", False, None)
    f.only("hidden_act", "gelu", "gelu_pytorch_tanh", None)  # of which both mean the one that xAI has
    f.only("rope_type", "original", None)  # which is plain positions, whatever is said of scaling beside it
    scale = None if f.get("attn_output_multiplier") is None else f.number("attn_output_multiplier")
    cap = f.number("attn_logit_softcapping", f.number("max_attn_value", 30.0))
    half = f.flag("rope_rotate_half_dims", False)
    d = parse_decoder(
        f.replaced(hidden_act="gelu_pytorch_tanh"),
        norm_eps=1e-5,
        theta=1e4,
        partial=0.5 if half else 1.0,
        scores=Scores(scale, cap=cap),
    ).named(norms=NORMS)
    sharp = f.get("attn_temperature_len")
    last = f.count("attn_temperature_len") if sharp not in (None, -1, 0) else d.context_length
    d = replace(
        d,
        context_length=min(d.context_length, last + 1),
        embedding_scale=f.number("embedding_multiplier_scale"),
        logits=Logits(f.number("output_multiplier_scale"), _cap(f, "final_logit_softcapping")),
    )
    moe = routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), d.num_layers)
    wide, beside = f.count("intermediate_size"), f.flag("residual_moe", False)
    share = 0.5**0.5 if beside else 1.0
    blocks = GrokMoe(
        moe,
        tuple(range(d.num_layers)),
        0,
        f.count("moe_intermediate_size", wide),
        partial(Router, cap=_cap(f, "router_logit_softcapping")),
        Scoring(normalise=False, corrected=False, scaling=share),
        names=NAMES,
        beside=wide if beside else 0,
    )
    return Spec(d, blocks)


def _cap(f: Fields, name: str) -> float | None:
    return f.number(name, 0.0, zero=True) or None


class Router:
    """Softmax over all experts, of logits l or cap * tanh(l / cap), and of these the best k."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, cap: float | None) -> None:
        weights = layers.weights
        self._math, self._routing, self._num_spares = weights.math, weights.routing, weights.spares
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)
        self._cap, self._top_k, self._scaling = cap, moe.moe.top_k, moe.scoring.scaling

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._math, self._norm(x)
        logits = self._gate(hidden)
        shares = math.softmax(logits if self._cap is None else math.tanh(logits / self._cap) * self._cap)
        ids = math.top_k(shares, self._top_k)
        return hidden, self._routing(ids, math.take(shares, ids) * self._scaling, self._spares(shares))

    def _spares(self, shares: Array) -> tuple[Array, Array, bool] | None:
        if not self._num_spares:
            return None
        ids = self._math.top_k(shares, self._top_k + self._num_spares)[:, self._top_k :]
        return ids, self._math.take(shares, ids) * self._scaling, False


@dataclass(frozen=True, slots=True)
class GrokMoe(Moe):
    beside: int = 0  # the size of the MLP beside the experts; 0: there is none

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes = Moe.shapes(self, decoder)
        for layer in map(decoder.layer, self.moe_layers if self.beside else ()):
            shapes |= mlp_shapes(decoder.attention.hidden_size, self.beside, f"{layer}mlp.")
        return shapes

    def shared_mlp(self, weights: Weights, decoder: DecoderConfig, block: str, layer: int) -> SharedExpert | None:
        if not self.beside:
            return None
        return ScaledMlp(weights, f"{decoder.layer(layer)}mlp.", activation=decoder.activation)


class ScaledMlp(SharedExpert):
    """What an MLP gives, over sqrt(2)."""

    def __call__(self, hidden: Hidden) -> Hidden:
        result: Hidden = super().__call__(hidden) * 0.5**0.5
        return result


class Family(DecoderFamily):
    name = "grok"
    parse = staticmethod(_parse)
    renamed = (  # hpcai-tech's names for Grok-1
        (r"\.moe_block\.experts\.(\d+)\.linear\.", r".block_sparse_moe.experts.\1.w1."),
        (r"\.moe_block\.experts\.(\d+)\.linear_v\.", r".block_sparse_moe.experts.\1.w3."),
        (r"\.moe_block\.experts\.(\d+)\.linear_1\.", r".block_sparse_moe.experts.\1.w2."),
        (r"\.moe_block\.", ".block_sparse_moe."),
        (r"\.attn\.", ".self_attn."),
    )
