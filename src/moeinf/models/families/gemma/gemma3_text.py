"""Gemma 3: layers with a window and positions of their own, norms in front and behind (arXiv 2503.19786).

Larger checkpoints hold a tower that sees pictures, which is left out.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.gemma.gemma import gemma_decoder
from moeinf.models.families.gemma.gemma4 import NORMS
from moeinf.models.families.llama.dense_mlps import PLAIN, dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Scores, Sight
from moeinf.models.layers.decoder import Logits, sliding_layers
from moeinf.models.layers.rope import Rope, of_kind, rope_of
from moeinf.models.text_part import TextIn
from moeinf.types import JsonObject

_KINDS = {"sliding_attention": 1e4, "full_attention": 1e6}  # by theta
_SIZES = {  # which published checkpoints do not say where they are these
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}


def _positions(f: Fields) -> JsonObject:
    """Of each kind of layers. Published configs have one for layers that see all tokens, and a theta for the others."""
    said, scaling = f.within("rope_parameters"), f.within("rope_scaling").plain
    said.refuse_others(*_KINDS)
    if f.get("rope_parameters") is not None:
        f.only("rope_scaling", None)
    f.within("rope_scaling").only("rope_type", "linear", "default", None)
    found: dict[str, JsonObject] = {kind: {"rope_type": "default"} | said.within(kind).plain for kind in _KINDS}
    found["full_attention"] |= scaling
    for kind, name in (("full_attention", "rope_theta"), ("sliding_attention", "rope_local_base_freq")):
        found[kind].setdefault("rope_theta", f.number(name, _KINDS[kind]))
    return found


def _parse(f: Fields) -> Spec:
    f.fixed(attn_logit_softcapping=None, partial_rotary_factor=None)
    f = f.replaced(rope_parameters=_positions(f), rope_scaling=None)
    f = f.replaced(**{name: size for name, size in _SIZES.items() if name not in f})
    head_dim, context_length = f.count("head_dim", 256, minimum=2), f.count("max_position_embeddings")

    def rope(kind: str) -> Rope:
        return rope_of(of_kind(f, kind), head_dim, _KINDS[kind], context_length)

    scale = f.number("query_pre_attn_scalar", 256) ** -0.5
    decoder = gemma_decoder(
        f, "hidden_activation", rope=rope("full_attention"), scores=Scores(scale), head_norms=HeadNorms()
    )
    window, every = f.count("sliding_window", 4096), f.count("sliding_window_pattern", 6)
    slides = sliding_layers(f, decoder.num_layers, lambda i: (i + 1) % every != 0)
    local = replace(decoder.attention, sight=Sight(window), rope=rope("sliding_attention"))
    cap = None if f.get("final_logit_softcapping") is None else f.number("final_logit_softcapping")
    decoder = replace(
        decoder.named(norms=NORMS), special={i: local for i, each in enumerate(slides) if each}, logits=Logits(cap=cap)
    )
    return Spec(decoder, dense_mlps(f, decoder, replace(PLAIN, behind="post_feedforward_layernorm")))


class Family(DecoderFamily):
    name = "gemma3_text"
    ignored = (r"model\.(vision_tower|multi_modal_projector)\..*",)
    parse = staticmethod(_parse)
    text = TextIn(tied=True)
