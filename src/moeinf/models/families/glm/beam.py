"""Reflection's Beam: gated attention between norms on both sides; DeepSeek-V3's routing (BeamForCausalLM).

Every sixth layer and the last see all tokens and have no positions: their queries grow with the position. The others
have a window. Behind each layer's halves the n-th sum is x / sqrt(n) + h sqrt((n - 1) / n), of what is added and the
sum before: so that h sqrt(n) is a plain sum, which is what is kept here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import AttentionConfig, Gate, HeadNorms, Sharpening
from moeinf.models.layers.decoder import DecoderConfig, LayerNorms, Logits, parse_decoder
from moeinf.models.layers.moe import BlockNames, sparse_layers
from moeinf.models.layers.rope import of_kind, rope_of, whole_heads
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.widened import widened

_KINDS = ("sliding_attention", "full_attention")
_NORMS = LayerNorms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm")
_NAMES = BlockNames(behind="post_feedforward_layernorm", behind_dense="post_feedforward_layernorm")
_ROPES: dict[str, Any] = {_KINDS[0]: {"rope_type": "default", "rope_theta": 1e4}, _KINDS[1]: None}
_SHARPENING = Sharpening(0.1, 2048, offset=1, growth="power")  # of queries without positions


def _parse(f: Fields) -> Spec:
    for name in ("rope_theta", "rope_scaling", "partial_rotary_factor"):  # each kind of layer has its own
        f.only(name, None)
    f.present("head_dim", "num_experts", "n_group", "topk_group", "routed_scaling_factor", "final_logit_softcapping")
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    kinds = f.kinds("layer_types", num_layers, *_KINDS)
    if kinds is None:
        kinds = tuple(_KINDS[(i + 1) % 6 == 0 or i == num_layers - 1] for i in range(num_layers))
    decoder = parse_decoder(
        f.replaced(rope_parameters=None),
        norm_eps=1e-6,
        theta=1e4,
        rope=None,
        head_norms=HeadNorms(),
        gate=Gate("gate_proj", bias="gate_bias"),
    )
    of_kinds = {kind: _attention(f, decoder.attention, kind) for kind in set(kinds)}
    blocks = sigmoid_moe(
        f.replaced(n_shared_experts=0, num_nextn_predict_layers=0, num_mtp_layers=0),
        num_layers,
        moe_layers=sparse_layers(f, num_layers, first_dense=min(3, num_layers)),
    )
    decoder = replace(
        decoder.named(norms=_NORMS),
        special={i: of_kinds[kind] for i, kind in enumerate(kinds)},
        logits=Logits(cap=None if f.get("final_logit_softcapping") is None else f.number("final_logit_softcapping")),
    )
    return Spec(widened(DepthScaled, decoder), replace(blocks, names=_NAMES))


class DepthScaled(DecoderConfig):
    """The published n-th sum, of which the embedding is the first, is 1 / sqrt(n) of the one kept here."""

    def norm_eps(self, summed: int) -> float:
        """A norm of x / sqrt(n) is that of x whose epsilon is n times as large."""
        return self.attention.norm_eps * summed


def _attention(f: Fields, a: AttentionConfig, kind: str) -> AttentionConfig:
    """Of a kind of layer, of which the config says what positions it has; null: none."""
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    positions = f.within("rope_parameters")
    positions.refuse_others(*_KINDS)
    positions.present(kind)
    if kind == "sliding_attention":
        a = a.seeing(f.count("sliding_window"))
    if positions.get(kind) is None:
        return a.scored(sharpening=_SHARPENING)
    own = of_kind(f, kind)
    whole_heads(own)
    return replace(a, rope=rope_of(own, a.head_dim, 1e4, f.count("max_position_embeddings")))


class Family(DecoderFamily):
    name = "beam"
    parse = staticmethod(_parse)
