"""Gemma 2: scores and logits that are capped, norms in front and behind, a window in every other layer (2408.00118)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.gemma.gemma import gemma_decoder
from moeinf.models.families.gemma.gemma4 import NORMS
from moeinf.models.families.llama.dense_mlps import PLAIN, dense_mlps
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Scores
from moeinf.models.layers.decoder import Logits, sliding_layers


class Family(DecoderFamily):
    name = "gemma2"

    @staticmethod
    def parse(f: Fields) -> Spec:
        scale = f.number("query_pre_attn_scalar", 256) ** -0.5
        scores = Scores(scale, cap=_cap(f, "attn_logit_softcapping", 50.0))
        decoder = gemma_decoder(f, "hidden_activation", scores=scores)
        window = f.count("sliding_window", 0 if "sliding_window" in f else 4096) or None
        decoder = decoder.with_windows(sliding_layers(f, decoder.num_layers, lambda i: i % 2 == 0), window)
        decoder = replace(decoder.named(norms=NORMS), logits=Logits(cap=_cap(f, "final_logit_softcapping", 30.0)))
        return Spec(decoder, dense_mlps(f, decoder, replace(PLAIN, behind="post_feedforward_layernorm")))


def _cap(f: Fields, name: str, default: float) -> float | None:
    """null means that there is none."""
    return None if name in f and f.get(name) is None else f.number(name, default)
